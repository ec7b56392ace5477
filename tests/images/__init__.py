"""Tests of the images: built without a container engine, and started as containers are."""
