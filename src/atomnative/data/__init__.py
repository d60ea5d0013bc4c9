"""Bytes in: shards as one circular string, packets and their features, one stream or many (design section 1)."""
