"""The one to three files of tests that are nearest to a module, for ``--near``: those that test it by name.

A few mutants are measured with them in minutes, where all tests of a folder take hours.  A score found so is a lower
one: another file may have the test that a survivor would have met.
"""

NEAR: dict[str, tuple[str, ...]] = {
    "core/batch.py": ("core/test_batch.py", "data/test_arrays.py", "data/test_groups.py"),
    "core/code.py": ("execute/test_strangers.py",),
    "core/columns.py": ("core/test_columns.py", "data/test_columns.py", "data/test_levels.py"),
    "core/encoding.py": ("results/test_serialize.py", "extend/test_door.py"),
    "core/finite.py": ("faults/test_finite.py",),
    "core/frozen.py": ("schedules/test_frozen.py",),
    "core/location.py": ("core/test_location.py", "data/test_storage_errors.py"),
    "core/registry.py": ("core/test_registry.py", "results/test_serialize.py"),
    "core/schema.py": ("faults/test_sealed.py",),
    "core/summary.py": ("test_summary.py", "kernels/test_sparse_sums.py"),
    "core/survey.py": ("core/test_survey.py", "data/test_survey.py", "data/test_quantiles.py"),
    "core/table.py": ("core/test_topic_list.py", "results/test_reprs.py"),
    "moves/base.py": ("moves/test_bookkeeping.py", "moves/test_proposals.py", "moves/test_side_by_side.py"),
    "moves/birth.py": ("moves/test_bookkeeping.py", "moves/test_pending.py", "growing/test_new_batches.py"),
    "moves/create.py": ("moves/test_promises.py", "moves/test_neighbours.py", "chains/test_births.py"),
    "moves/delete.py": ("moves/test_bookkeeping.py", "moves/test_calm.py", "moves/test_memory.py"),
    "moves/documents.py": ("topics/test_document_births.py",),
    "moves/judge.py": ("moves/test_decisions.py", "moves/test_promises.py", "moves/test_proposals.py"),
    "moves/memory.py": ("moves/test_memory.py",),
    "moves/merge.py": ("moves/test_bookkeeping.py", "moves/test_decisions.py"),
    "moves/pairs.py": ("moves/test_pairs.py", "moves/test_near_pairs.py"),
    "moves/policy.py": ("moves/test_policy.py",),
    "moves/pools.py": ("moves/test_promises.py",),
    "moves/random_keys.py": ("moves/test_same_bits.py",),
    "moves/usual.py": ("moves/test_policy.py",),
    "moves/when.py": ("moves/test_when.py",),
    "moves/windows.py": ("chains/test_births.py",),
    "training/growing/found.py": ("growing/test_fresh.py", "growing/test_holding.py", "growing/test_update.py"),
    "training/growing/growing_run.py": ("growing/test_update.py", "growing/test_versions.py", "growing/test_packed.py"),
    "training/growing/grown.py": ("growing/test_update.py", "growing/test_weighted.py", "growing/test_replace.py"),
    "training/growing/in_memory.py": ("face/test_partial_fit.py",),
    "training/growing/incoming/aside.py": ("growing/test_aside.py",),
    "training/growing/incoming/pieces.py": ("growing/test_update.py", "growing/test_follow.py", "growing/test_feed.py"),
    "training/growing/incoming/words.py": ("growing/test_new_words.py",),
    "training/growing/ingest_update.py": ("growing/test_update.py", "growing/test_ages.py", "growing/test_names.py"),
    "training/growing/revise.py": ("growing/test_replace.py", "growing/test_retire.py", "growing/test_versions.py"),
    "training/growing/update.py": ("growing/test_update.py", "growing/test_follow.py", "growing/test_aside.py"),
    "training/growing/versions.py": ("growing/test_versions.py", "growing/test_update.py"),
}
"""Files below ``tests`` by files below ``bnp_dask``."""
