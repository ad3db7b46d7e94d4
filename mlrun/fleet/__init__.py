"""The hosts themselves: first contact, their environments, and taking it all away again."""
