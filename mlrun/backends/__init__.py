"""What a framework must do to be trained by mlrun, and the frameworks that do it."""
