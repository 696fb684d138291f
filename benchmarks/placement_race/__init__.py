"""How good placement is: the cost model, and later what is simulated and what ran."""
