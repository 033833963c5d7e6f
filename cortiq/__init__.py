"""cortiq: language models from one backend-neutral graph, with the same bits on every device."""
