"""Which samples a rank sees at a step, and how it gets them."""
