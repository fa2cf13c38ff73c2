"""What is measured of all peers alike, one scenario a module."""
