"""How the programs of a run connect, agree, and end."""
