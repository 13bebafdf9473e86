// The loops of an optimizer's step, written once for all instruction sets. A source file defines CKPT_TARGET (the
// function attribute that allows its instructions), `Floats` with the operations below, and then includes this file
// inside its anonymous namespace, as with stripe_loops.inl. The compiler must not contract products and sums by itself
// (-ffp-contract=off).
//
//   constexpr std::size_t lanes;                      floats in a Floats
//   Floats load(const float*); Floats load(const Bfloat16*); void store(float*, Floats); Floats splat(float);
//   Floats add, subtract, multiply, divide(Floats, Floats); Floats fma(Floats a, Floats b, Floats c);  a * b + c
//   Floats root(Floats); Floats negate(Floats);
//   Floats larger(Floats, Floats);                    all bits set if one of them is not a number
//   Floats larger_or_first(Floats, Floats);           the first if one of them is not a number

template <Rounding rounding>
CKPT_TARGET inline Floats multiply_add(Floats a, Floats b, Floats c) {
  if constexpr (rounding == Rounding::separate) return add(multiply(a, b), c);
  return fma(a, b, c);
}

// moment * decay + factor * gradient
template <Rounding rounding>
CKPT_TARGET inline Floats decayed(Floats moment, Floats decay, Floats factor, Floats gradient) {
  if constexpr (rounding == Rounding::fused_decay) return fma(moment, decay, multiply(factor, gradient));
  return multiply_add<rounding>(factor, gradient, multiply(moment, decay));
}

struct AdamFactors {
  Floats shrink, weight_decay, beta1, lerp, beta2, square, root_divisor, epsilon, negative_rate;
};

CKPT_TARGET inline AdamFactors factors_of(const AdamStep& step) {
  return {splat(step.shrink),       splat(step.weight_decay), splat(step.beta1),
          splat(step.lerp),         splat(step.beta2),        splat(step.square),
          splat(step.root_divisor), splat(step.epsilon),      splat(step.negative_rate)};
}

// moment * decay + value * (1 - decay), as torch's fused kernel for GPUs computes it
CKPT_TARGET inline Floats mixed(Floats moment, Floats decay, Floats value) {
  return fma(decay, moment, fma(negate(decay), value, value));
}

template <Rounding rounding>
CKPT_TARGET inline Floats shrunk(Floats parameter, const AdamFactors& by) {
  if constexpr (rounding == Rounding::gpu_fused) return fma(by.shrink, parameter, parameter);
  return multiply(parameter, by.shrink);
}

template <Rounding rounding>
CKPT_TARGET inline Floats first_moment(Floats first, Floats gradient, const AdamFactors& by, bool lerp_from_gradient) {
  if constexpr (rounding == Rounding::gpu_fused) return mixed(first, by.beta1, gradient);
  return multiply_add<rounding>(by.lerp, subtract(gradient, first), lerp_from_gradient ? gradient : first);
}

template <Rounding rounding>
CKPT_TARGET inline Floats second_moment(Floats second, Floats gradient, const AdamFactors& by) {
  if constexpr (rounding == Rounding::gpu_fused) return mixed(second, by.beta2, multiply(gradient, gradient));
  if constexpr (rounding == Rounding::gpu)
    return decayed<rounding>(second, by.beta2, by.square, multiply(gradient, gradient));
  return decayed<rounding>(second, by.beta2, multiply(by.square, gradient), gradient);
}

template <Rounding rounding>
CKPT_TARGET inline Floats stepped(Floats parameter, Floats first, Floats divisor, const AdamFactors& by) {
  if constexpr (rounding == Rounding::gpu) return fma(by.negative_rate, divide(first, divisor), parameter);
  return add(parameter, divide(multiply(by.negative_rate, first), divisor));
}

template <Rounding rounding, typename Element>
CKPT_TARGET inline void step_at(const AdamStep& step, const AdamFactors& by, bool forgets_nan, const Run<Element>& run,
                                std::size_t at) {
  Floats gradient = load(run.gradient + at), parameter = load(run.before[0] + at);
  Floats first = load(run.before[1] + at), second = load(run.before[2] + at);
  if (step.maximize) gradient = negate(gradient);
  if (step.shrinks) parameter = shrunk<rounding>(parameter, by);
  if (step.decays) gradient = multiply_add<rounding>(parameter, by.weight_decay, gradient);

  first = first_moment<rounding>(first, gradient, by, step.lerp_from_gradient);
  second = second_moment<rounding>(second, gradient, by);
  store(run.after[1] + at, first);
  store(run.after[2] + at, second);
  if (step.amsgrad) {
    const Floats largest = load(run.before[3] + at);
    second = forgets_nan ? larger_or_first(largest, second) : larger(largest, second);
    store(run.after[3] + at, second);
  }
  const Floats divisor = add(divide(root(second), by.root_divisor), by.epsilon);
  store(run.after[0] + at, stepped<rounding>(parameter, first, divisor, by));
}

struct SgdFactors {
  Floats weight_decay, momentum, undamped, negative_rate;
};

CKPT_TARGET inline SgdFactors factors_of(const SgdStep& step) {
  return {splat(step.weight_decay), splat(step.momentum), splat(step.undamped), splat(step.negative_rate)};
}

template <Rounding rounding, typename Element>
CKPT_TARGET inline void step_at(const SgdStep& step, const SgdFactors& by, bool, const Run<Element>& run,
                                std::size_t at) {
  Floats gradient = load(run.gradient + at);
  const Floats parameter = load(run.before[0] + at);
  if (step.maximize) gradient = negate(gradient);
  if (step.decays) gradient = multiply_add<rounding>(parameter, by.weight_decay, gradient);
  if (step.has_momentum) {
    const Floats momentum =
        step.first ? gradient : decayed<rounding>(load(run.before[1] + at), by.momentum, by.undamped, gradient);
    store(run.after[1] + at, momentum);
    gradient = step.nesterov ? multiply_add<rounding>(momentum, by.momentum, gradient) : momentum;
  }
  store(run.after[0] + at, multiply_add<rounding>(gradient, by.negative_rate, parameter));
}

// Fewer elements than a vector has, computed in one that is filled up with zeros.
template <Rounding rounding, typename Step, typename Factors, typename Element>
CKPT_TARGET inline void step_rest(const Step& step, const Factors& by, bool forgets_nan, const Run<Element>& run,
                                  std::size_t at) {
  const std::size_t count = run.count - at;
  Element gradient[lanes] = {};
  float tensors[max_state_tensors][lanes] = {};
  std::copy_n(run.gradient + at, count, gradient);
  Run<Element> filled{gradient, {}, {}, lanes};
  for (std::size_t i = 0; i < max_state_tensors; ++i) {
    if (run.before[i] != nullptr) std::copy_n(run.before[i] + at, count, tensors[i]);
    filled.before[i] = filled.after[i] = tensors[i];
  }
  step_at<rounding>(step, by, forgets_nan, filled, 0);
  for (std::size_t i = 0; i < max_state_tensors; ++i) {
    if (run.after[i] != nullptr) std::copy_n(tensors[i], count, run.after[i] + at);
  }
}

template <Rounding rounding, typename Step, typename Element>
CKPT_TARGET void run_rounded(const Step& step, bool forgets_nan, const Run<Element>& run) {
  const Step copy = step;  // that no store can change
  const auto by = factors_of(copy);
  std::size_t at = 0;
  for (; at + lanes <= run.count; at += lanes) step_at<rounding>(copy, by, forgets_nan, run, at);
  if (at < run.count) step_rest<rounding>(copy, by, forgets_nan, run, at);
}

template <typename Step, typename Element>
CKPT_TARGET void run_step(const Step& step, Way way, const Run<Element>& run) {
  switch (way.rounding) {
    case Rounding::separate:
      return run_rounded<Rounding::separate>(step, way.forgets_nan, run);
    case Rounding::fused:
      return run_rounded<Rounding::fused>(step, way.forgets_nan, run);
    case Rounding::fused_decay:
      return run_rounded<Rounding::fused_decay>(step, way.forgets_nan, run);
    case Rounding::gpu:
      return run_rounded<Rounding::gpu>(step, way.forgets_nan, run);
    case Rounding::gpu_fused:
      return run_rounded<Rounding::gpu_fused>(step, way.forgets_nan, run);
  }
}

constexpr UpdateLoops these_loops = {run_step<AdamStep, float>, run_step<AdamStep, Bfloat16>, run_step<SgdStep, float>,
                                     run_step<SgdStep, Bfloat16>};
