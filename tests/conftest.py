"""What all tests share. Tests need no GPU unless they are marked `gpu`."""
