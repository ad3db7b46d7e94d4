"""TensorFlow meets the Communicator here. Importing this package alone doesn't import TensorFlow."""
