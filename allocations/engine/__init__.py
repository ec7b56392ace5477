"""Deciding, apart from doing: a frozen picture and a request go in, a Decision comes out. Pure: no Django, no network, no clock."""
