"""Browsers' streams of this room: the fleet, one node, one device. `signed_in` is what they share."""
