#include "agent/transfers/repeated_update.hpp"

#include <algorithm>
#include <cstring>
#include <variant>

#include "core/repeated_updates.hpp"
#include "kernels/digest.hpp"

namespace ckpt::agent {
namespace {

using kernels::StateTensor;

// Repeats the update of one parameter, and marks the leaves that it has digested.
class Updater {
 public:
  Updater(const arena::GradientRecord& record, std::span<const std::byte> bytes, const std::byte* before,
          std::byte* after)
      : record_(record),
        bytes_(bytes),
        before_(before),
        after_(after),
        digests_(kernels::leaf_count(record.piece_bytes)),
        is_digested_(digests_.size(), false) {}

  // After copy(): a CountedStep needs its number.
  void update(const arena::GradientRecord::Updated& each) {
    if (each.elements == 0) return;
    std::visit([&](const auto& step) { update(each, step); }, record_.steps[each.step]);
  }
  void copy(const arena::GradientRecord::Copied& each) {
    std::copy_n(bytes_.data() + each.record_at, each.size_bytes, after_ + each.piece_at);
  }
  std::vector<std::uint64_t> digests() {
    for (std::size_t leaf = 0; leaf < digests_.size(); ++leaf) {
      if (is_digested_[leaf]) continue;
      digests_[leaf] = kernels::leaf_digest(after_ + leaf * kernels::leaf_size_bytes,
                                            kernels::leaf_length(record_.piece_bytes, leaf));
    }
    return std::move(digests_);
  }

 private:
  void update(const arena::GradientRecord::Updated& each, const kernels::AdamStep& step) {
    kernels::AdamState state{tensor(each.parameter_at, each.elements),
                             tensor(each.first_moment_at, each.elements),
                             tensor(each.second_moment_at, each.elements),
                             {}};
    if (step.amsgrad) state.largest_second_moment = tensor(each.largest_second_moment_at, each.elements);
    kernels::update(step, state, gradient(each));
  }
  void update(const arena::GradientRecord::Updated& each, const kernels::SgdStep& step) {
    kernels::SgdState state{tensor(each.parameter_at, each.elements), {}};
    if (step.has_momentum) state.momentum = tensor(each.first_moment_at, each.elements);
    kernels::update(step, state, gradient(each));
  }
  void update(const arena::GradientRecord::Updated& each, const arena::GradientRecord::CountedStep& step) {
    float count = 0;
    std::memcpy(&count, after_ + each.count_at, sizeof(count));
    update(each, kernels::adam_step(step.settings, count, {kernels::TorchForm::fused, kernels::TorchCapability::cuda}));
  }
  kernels::Gradient gradient(const arena::GradientRecord::Updated& each) const {
    const std::byte* const at = bytes_.data() + each.gradient_at;
    if (each.is_bfloat16) return std::span(reinterpret_cast<const kernels::Bfloat16*>(at), each.elements);
    return std::span(reinterpret_cast<const float*>(at), each.elements);
  }
  StateTensor tensor(std::uint64_t at, std::uint64_t elements) {
    const auto leaves = kernels::whole_leaves(at, elements * sizeof(float), record_.piece_bytes);
    std::fill(is_digested_.begin() + static_cast<std::ptrdiff_t>(leaves.first),
              is_digested_.begin() + static_cast<std::ptrdiff_t>(leaves.last), true);
    return {reinterpret_cast<const float*>(before_ + at), reinterpret_cast<float*>(after_ + at), digests_.data(), at,
            record_.piece_bytes};
  }

  const arena::GradientRecord& record_;
  const std::span<const std::byte> bytes_;
  const std::byte* const before_;
  std::byte* const after_;
  std::vector<std::uint64_t> digests_;
  std::vector<bool> is_digested_;  // by an update; other leaves are shared by several tensors, or copied
};

}  // namespace

std::string why_not(const arena::GradientRecord& record, const arena::Manifest& after, const arena::Manifest& before) {
  const auto shape = [](const arena::Manifest& of) {
    return core::PieceShape{of.checkpoint, of.length_bytes, of.layout_hash};
  };
  return core::why_not_repeated(record.base, {record.checkpoint, record.piece_bytes, record.layout_hash}, shape(after),
                                shape(before));
}

std::vector<std::uint64_t> repeat_update(const arena::GradientRecord& record, std::span<const std::byte> bytes,
                                         const std::byte* before, std::byte* after) {
  Updater updater(record, bytes, before, after);
  for (const auto& each : record.copied) updater.copy(each);
  for (const auto& each : record.updated) updater.update(each);
  return updater.digests();
}

}  // namespace ckpt::agent
