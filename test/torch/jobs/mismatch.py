"""Programs with a mistake in their communication, each on a process group of its own, on 4 ranks.

Started with TORCH_NCCL_BLOCKING_WAIT=1, so that the error of a collective is raised where it is waited for. Every
rank prints what it caught. Which texts are right is for the test to say.
"""

import os

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def ones(count, dtype=torch.float32):
    return torch.ones(count, dtype=dtype, device=DEVICE)


def pair_sizes(group):
    """Rank 0 sends 2 elements to rank 1, which expects 3."""
    sent, received = ([1, 2], [1, 1]) if RANK == 0 else ([1, 1], [3, 1])
    return dist.all_to_all_single(ones(sum(received)), ones(sum(sent)), received, sent, group=group, async_op=True)


def counts(group):
    return dist.all_reduce(ones(409600 if RANK == 0 else 409598), group=group, async_op=True)


def kinds(group):
    if RANK == 0:
        return dist.all_reduce(ones(8), group=group, async_op=True)
    return dist.all_gather_single(ones(16), ones(8), group=group, async_op=True)


def three_to_one(group):
    if RANK == 2:
        return dist.all_gather_single(ones(32), ones(8), group=group, async_op=True)
    return dist.all_reduce(ones(16), group=group, async_op=True)


def fp8_sum(group):
    return dist.all_reduce(ones(8).to(torch.float8_e4m3fn), group=group, async_op=True)


# name, ranks, program; devices 0 and 1 are an a100, 2 and 3 an h100
CASES = (
    ("pair_sizes", (0, 1), pair_sizes),
    ("counts", (0, 1), counts),
    ("kinds", (0, 1), kinds),
    ("three_to_one", (0, 1, 2, 3), three_to_one),
    ("fp8_on_a100", (0, 1), fp8_sum),
    ("fp8_on_h100", (2, 3), fp8_sum),
)


def main():
    torch.cuda.set_device(DEVICE)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    dist.init_process_group("nccl")
    for name, ranks, program in CASES:
        group = dist.new_group(ranks)
        if RANK in ranks:
            try:
                program(group).wait()
                print(f"ok {RANK} {name}\n", end="", flush=True)
            except Exception as error:
                print(f"caught {RANK} {name}: {' '.join(str(error).split())}\n", end="", flush=True)
        # all meet here; not in a collective, since the group may be broken
        if store.add(name, 1) == 4:
            store.set(f"{name} done", "")
        store.wait([f"{name} done"])
    os._exit(0)  # the broken groups are not shut down


if __name__ == "__main__":
    main()
