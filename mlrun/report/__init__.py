"""What a run came to, as one page and one picture for people who weren't there."""
