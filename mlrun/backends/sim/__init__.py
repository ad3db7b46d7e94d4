"""A Mac made of sleep: the shape of a real model's training, with real communication and no computing."""
