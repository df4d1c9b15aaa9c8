"""Islands: workers that are separate programs, and their transport."""
