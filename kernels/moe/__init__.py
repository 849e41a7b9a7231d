"""Mixture of experts: routing, the expert-sorted order of its slots, and the experts themselves."""
