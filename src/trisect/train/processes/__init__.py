"""The processes of a run: how ranks start and meet, what they are handed and what they tell, who is lost and why."""
