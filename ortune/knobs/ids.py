"""Ids of the knobs that code refers to by name; the data files describe all of them."""

from __future__ import annotations

EXECUTION_MODE = "execution_mode"
INTRA_OP_NUM_THREADS = "intra_op_num_threads"
INTER_OP_NUM_THREADS = "inter_op_num_threads"
GRAPH_OPTIMIZATION_LEVEL = "graph_optimization_level"
EXECUTION_ORDER = "execution_order"
ENABLE_CPU_MEM_ARENA = "enable_cpu_mem_arena"
ENABLE_MEM_PATTERN = "enable_mem_pattern"

INTRA_OP_THREAD_AFFINITIES = "session.intra_op_thread_affinities"
INTRA_OP_ALLOW_SPINNING = "session.intra_op.allow_spinning"
INTER_OP_ALLOW_SPINNING = "session.inter_op.allow_spinning"
INTRA_OP_SPIN_DURATION = "session.intra_op.spin_duration_us"
INTRA_OP_SPIN_BACKOFF = "session.intra_op.spin_backoff_max"
INTER_OP_SPIN_DURATION = "session.inter_op.spin_duration_us"
INTER_OP_SPIN_BACKOFF = "session.inter_op.spin_backoff_max"
FORCE_SPINNING_STOP = "session.force_spinning_stop"
DYNAMIC_BLOCK_BASE = "session.dynamic_block_base"
DISABLE_PREPACKING = "session.disable_prepacking"

ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
ALLOCATOR = "allocator"

PROVIDERS = "providers"
USE_TF32 = "cuda.use_tf32"
IO_BINDING = "io_binding"
GLOBAL_THREAD_POOL = "global_thread_pool"
WORKERS = "workers"
BATCH = "batch"
