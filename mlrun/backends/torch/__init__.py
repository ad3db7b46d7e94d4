"""PyTorch: the process group ``mlrun`` over a Communicator, and the Backend that trains with it.

Nothing is imported here: every ``import torch`` passes through this package (see ``autoload``).
"""
