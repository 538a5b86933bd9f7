"""Many networks of one shape, or cuts of it, trained at once as one network with many sets of weights.

results = lcprune.tune.fit_fleet(original, [plan, ...], data, lcprune.tune.recipe("finetune"), seeds=[0, ...])
"""
