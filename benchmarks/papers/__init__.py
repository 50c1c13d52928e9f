"""Figures and tables of the five papers: what is claimed, and whether it is so here."""
