"""The program on each GPU node, and the protocol it speaks. No Django."""
