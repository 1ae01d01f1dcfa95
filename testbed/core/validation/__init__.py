"""Is a collective library right, how near the physical bound, and alive after the fiber failed? Cases and judgement."""
