#include "agent/transfers/repeated_update.hpp"

#include <algorithm>

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

  void update(const arena::GradientRecord::Updated& each) {
    if (each.elements == 0) return;
    const kernels::AdamStep& step = record_.steps[each.step];
    kernels::AdamState state{tensor(each.parameter_at, each.elements),
                             tensor(each.first_moment_at, each.elements),
                             tensor(each.second_moment_at, each.elements),
                             {}};
    if (step.amsgrad) state.largest_second_moment = tensor(each.largest_second_moment_at, each.elements);
    const std::byte* const gradient = bytes_.data() + each.gradient_at;
    if (each.is_bfloat16)
      kernels::update(step, state, std::span(reinterpret_cast<const kernels::Bfloat16*>(gradient), each.elements));
    else
      kernels::update(step, state, std::span(reinterpret_cast<const float*>(gradient), each.elements));
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
  for (const auto& each : record.updated) updater.update(each);
  for (const auto& each : record.copied) updater.copy(each);
  return updater.digests();
}

}  // namespace ckpt::agent
