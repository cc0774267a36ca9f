"""How much GPU memory a run takes: arithmetic on shapes, documented in docs/memory.md. All sizes are bytes per GPU.

Parameters, gradients and optimiser state are exact. Saved activations follow what the layers of a Llama-like decoder
(RMSNorm, rotary attention without stored scores, gated MLP) keep for their backward pass. The rest is an estimate.
"""

from dataclasses import dataclass

GIB = 2**30
FLOAT32 = 4
PHASES = ("update", "rollout")
# CUDA contexts of the trainer and of the engine, NCCL's buffers and captured graphs: an assumption, not measured.
RESERVED = 3 * GIB
_VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_READS_INPUT = ({"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj"})  # adapted modules that share their input


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One decoder layer; sizes are numbers of features."""

    parameters: int  # of the base
    hidden: int
    queries: int  # heads * head size
    keys: int  # key-value heads * head size
    intermediate: int
    heads: int
    norm_inputs: int  # summed over the layer's norms
    norm_rows: int  # normalised vectors for each token
    linears: tuple[tuple[int, int], ...]  # (in, out) of every linear layer
    adapted: tuple[tuple[str, int, int], ...]  # (last part of the name, in, out) of those that carry adapters

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of one member's factors in this layer."""
        return rank * sum(size_in + size_out for _, size_in, size_out in self.adapted)

    def saved(self, tokens: int, itemsize: int, rank: int) -> int:
        """Activations kept for the backward pass of the whole layer, without checkpointing."""
        names = {name for name, _, _ in self.adapted}
        features = 2 * self.queries + 2 * self.keys  # what attention keeps: its inputs and its output
        features += 3 * self.intermediate  # gate before and after its activation, up
        features += self.hidden * sum(bool(names & group) for group in _READS_INPUT)
        features += self.intermediate * ("down_proj" in names)
        features += rank * len(self.adapted)
        statistics = FLOAT32 * (self.norm_rows + self.heads)
        # A norm computes in float32 and keeps its input so.
        return tokens * (itemsize * features + FLOAT32 * self.norm_inputs + statistics)


@dataclass(frozen=True, slots=True)
class ModelShape:
    layers: tuple[LayerShape, ...]
    root_parameters: int  # outside the decoder layers: embedding, output head unless tied, last norm
    vocabulary: int
    head_size: int

    @property
    def parameters(self) -> int:
        return self.root_parameters + sum(layer.parameters for layer in self.layers)

    def adapter_parameters(self, rank: int) -> int:
        return sum(layer.adapter_parameters(rank) for layer in self.layers)

    def saved(self, tokens: int, itemsize: int, rank: int, *, checkpointing: bool) -> int:
        """Activations of the decoder that live at the end of the forward pass, its head not counted."""
        last_norm = tokens * FLOAT32 * (self.layers[0].hidden + 1)
        if checkpointing:
            return last_norm + sum(tokens * itemsize * layer.hidden for layer in self.layers)
        return last_norm + sum(layer.saved(tokens, itemsize, rank) for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the configuration decides; lengths in tokens, ``*_itemsize`` in bytes."""

    members: int  # trained adapters
    slots: int  # adapters that the engine holds
    rank: int
    model_itemsize: int  # of the base as it is kept, sharded
    compute_itemsize: int  # of gathered parameters and activations
    shards: int  # GPUs over which the trainer's state is divided
    micro_batch: int
    log_prob_micro_batch: int
    checkpointing: bool
    fused_loss: bool  # flash-attn's cross-entropy, which writes the gradient over the logits
    entropy: bool  # whether the update differentiates the entropy
    scaled_logits: bool  # temperature other than 1
    state_offload: bool  # actor.fsdp_config.offload_policy: sharded state always on the CPU
    parameter_offload: bool  # on the CPU outside the update
    optimizer_offload: bool
    reshard: bool  # free a layer's gathered parameters after its forward pass
    engine_share: float  # rollout.gpu_memory_utilization
    engine_sleeps: bool  # the engine frees weights and cache during the update
    engine_itemsize: int
    cache_itemsize: int
    tensor_parallel: int
    batched_tokens: int  # of one step of the engine
    sequences: int  # of one step of the engine
    longest: int  # prompt and completion


@dataclass(frozen=True, slots=True)
class Item:
    name: str
    bytes: int
    where: str  # one of PHASES, or "both": when it is on the GPU


@dataclass(frozen=True, slots=True)
class Plan:
    gpu: int
    items: tuple[Item, ...]
    cache_tokens: int
    longest: int

    def peak(self, phase: str) -> int:
        return sum(item.bytes for item in self.items if item.where in (phase, "both"))

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the run can't fit; empty if it does."""
        found = []
        advice = {
            "update": "lower actor.ppo_max_token_len_per_gpu, turn on model.enable_gradient_checkpointing or "
            "rollout.free_cache_engine, or use more GPUs",
            "rollout": "lower rollout.gpu_memory_utilization, turn on actor.fsdp_config.param_offload and "
            "optimizer_offload, or use more GPUs",
        }
        for phase, what in advice.items():
            if self.peak(phase) > self.gpu:
                found.append(f"the {phase} needs {self.peak(phase) / GIB:.1f} GiB of {self.gpu / GIB:.1f}: {what}")
        if self.cache_tokens < self.longest:
            found.append(
                f"the engine's share leaves a cache of {self.cache_tokens} tokens, less than one sequence of "
                f"{self.longest}: raise rollout.gpu_memory_utilization or rollout.tensor_model_parallel_size, or lower "
                "data.max_response_length"
            )
        return tuple(found)


def plan(model: ModelShape, settings: Settings, gpu: int) -> Plan:
    """Everything that is on one GPU, in the update and in the rollout."""
    s = settings
    adapters = s.members * model.adapter_parameters(s.rank)
    state = "both" if not s.parameter_offload else "update"
    optimizer = "both" if not s.optimizer_offload else "update"
    items = []
    if not s.state_offload:
        items += [
            Item("base, sharded", _divided(model.parameters * s.model_itemsize, s.shards), state),
            Item("adapters, float32", _divided(adapters * FLOAT32, s.shards), state),
            # Gradients are dropped after each optimiser step.
            Item("gradients of adapters, float32", _divided(adapters * FLOAT32, s.shards), "update"),
            Item("AdamW moments, float32", _divided(2 * adapters * FLOAT32, s.shards), optimizer),
        ]
    items += [
        Item("gathered parameters", _gathered(model, s), "update"),
        Item("activations and loss", max(_update(model, s), _log_probs(model, s)), "update"),
    ]
    cache, engine = _engine(model, s, gpu)
    cache = max(cache, 0)
    items += [Item(name, size, "rollout" if s.engine_sleeps else "both") for name, size in engine]
    items.append(Item("engine: cache", cache, "rollout" if s.engine_sleeps else "both"))
    items.append(Item("CUDA, NCCL, graphs (assumed)", RESERVED, "both"))
    return Plan(gpu, tuple(items), cache // cache_token(model, s), s.longest)


def logit_copies(itemsize: int, *, fused: bool, entropy: bool, scaled: bool) -> tuple[int, int]:
    """Tensors of the logits' size and dtype that verl's loss keeps after the forward pass, and adds in the backward.

    Float32 takes logsumexp, which keeps the logits themselves; half precision takes log_softmax, which keeps its
    result. Backward makes gradients row by row and stacks them. Entropy keeps the probabilities.
    """
    kept = 1 + scaled + entropy
    if fused:
        return kept, int(entropy)
    return kept + (itemsize < FLOAT32), 2 + entropy


def cache_token(model: ModelShape, settings: Settings) -> int:
    """Keys and values of one token on one GPU; heads are divided, but never below one a GPU."""
    heads = (layer.keys // model.head_size for layer in model.layers)
    return sum(
        2 * settings.cache_itemsize * model.head_size * max(1, -(-count // settings.tensor_parallel)) for count in heads
    )


def _gathered(model: ModelShape, s: Settings) -> int:
    """The root's parameters, which FSDP2 keeps gathered, and two layers: the one at work and the one fetched ahead."""
    sizes = [layer.parameters + s.members * layer.adapter_parameters(s.rank) for layer in model.layers]
    at_once = sorted(sizes, reverse=True)[:2] if s.reshard else sizes
    # Gradients of one layer's adapters before they are reduced: as computed, and in float32.
    reduced = max(s.members * layer.adapter_parameters(s.rank) for layer in model.layers)
    return (model.root_parameters + sum(at_once)) * s.compute_itemsize + reduced * (s.compute_itemsize + FLOAT32)


def _update(model: ModelShape, s: Settings) -> int:
    """Peak of forward and backward: in the loss, or in the backward pass of a layer, when the logits are gone."""
    tokens, itemsize = s.micro_batch, s.compute_itemsize
    saved = model.saved(tokens, itemsize, s.rank, checkpointing=s.checkpointing)
    kept, added = logit_copies(itemsize, fused=s.fused_loss, entropy=s.entropy, scaled=s.scaled_logits)
    loss = (kept + added) * tokens * model.vocabulary * itemsize
    layer = max(_backward(layer, tokens, itemsize, s) for layer in model.layers)
    return saved + max(loss, layer)


def _backward(layer: LayerShape, tokens: int, itemsize: int, s: Settings) -> int:
    gradients = tokens * itemsize * (3 * layer.intermediate + 2 * layer.hidden)
    return gradients + (layer.saved(tokens, itemsize, s.rank) if s.checkpointing else 0)


def _log_probs(model: ModelShape, s: Settings) -> int:
    """verl's pass for the old log-probabilities: no graph, but entropy: logits, probabilities and their product."""
    return (3 + s.scaled_logits) * s.log_prob_micro_batch * model.vocabulary * s.compute_itemsize


def _engine(model: ModelShape, s: Settings, gpu: int) -> tuple[int, list[tuple[str, int]]]:
    """What vLLM's share leaves for its cache (negative: it does not do), and the other things in that share."""
    weights = _divided(model.parameters * s.engine_itemsize, s.tensor_parallel)
    rank = engine_rank(s.rank)
    # One slot more than members (engine/rollout.py). vLLM gives slots to every linear layer, adapted or not, and
    # divides either the input side or the output side of each over its GPUs; counted undivided.
    slots = (s.slots + 1) * s.engine_itemsize * rank * sum(map(_features, model.layers))
    widest = max(2 * layer.hidden + -(-3 * layer.intermediate // s.tensor_parallel) for layer in model.layers)
    work = s.batched_tokens * widest * s.engine_itemsize + 2 * s.sequences * model.vocabulary * FLOAT32
    items = [("engine: base", weights), ("engine: adapter slots", slots), ("engine: activations", work)]
    return int(s.engine_share * gpu) - weights - slots - work, items


def engine_rank(rank: int) -> int:
    """The rank that vLLM allocates.

    Raises:
        ValueError: vLLM serves no adapter of such a rank.
    """
    if rank > _VLLM_RANKS[-1]:
        raise ValueError(f"lora_rank={rank}: vLLM serves ranks up to {_VLLM_RANKS[-1]}")
    return next(allowed for allowed in _VLLM_RANKS if allowed >= rank)


def _features(layer: LayerShape) -> int:
    return sum(map(sum, layer.linears))


def _divided(size: int, shards: int) -> int:
    return -(-size // shards)
