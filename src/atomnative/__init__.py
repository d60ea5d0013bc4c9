"""Train and run tokenizer-free language models on raw bytes: one byte is one tick of a recurrent field."""
