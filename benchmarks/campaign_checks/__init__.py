"""Checks behind the tables of campaigns that HydraGNN's users take over."""
