"""How well a model predicts text that it was not trained on."""
