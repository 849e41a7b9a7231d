"""Tests, a package so that one may import what others share."""
