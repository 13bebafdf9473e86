#include "core/halts.hpp"

#include <algorithm>

namespace ckpt::core {
namespace {

constexpr std::size_t named_max = 3;  // in a sentence

// What it answered to this halt. An answer to another one says nothing.
FreezeAnswer answer_to(const Halt& halt, const HaltedRank& rank) {
  return rank.answer.halt == halt.number ? rank.answer : FreezeAnswer{};
}

bool is_held(Freeze freeze) { return freeze >= Freeze::held; }
bool has_ended(Freeze freeze) { return freeze == Freeze::captured || freeze == Freeze::refused; }

template <class Is>
bool none_awaited(const Halt& halt, const std::vector<HaltedRank>& ranks, Is is_done) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const HaltedRank& rank) { return !rank.is_awaited || is_done(answer_to(halt, rank).freeze); });
}

const char* why_not(const Unfrozen& rank) {
  switch (rank.freeze) {
    case Freeze::none:
      return "does not answer";
    case Freeze::updating:
      return "is in an update";
    case Freeze::held:
      return "waits for the others";
    case Freeze::capturing:
      return "is being captured";
    case Freeze::captured:
      return "was captured at another iteration";
    case Freeze::refused:
      break;
  }
  return "cannot be captured";
}

std::string unfrozen_text(const Halt& halt, const NameOf& name_of) {
  std::string text;
  for (std::size_t i = 0; i < std::min(halt.others.size(), named_max); ++i) {
    const Unfrozen& rank = halt.others[i];
    text += "; rank " + std::to_string(rank.rank) + " on node " + name_of(rank.node) + " " + why_not(rank);
    if (rank.freeze != Freeze::none) text += " (iteration " + std::to_string(rank.iteration) + ")";
  }
  const std::size_t left = halt.ranks - halt.captured - std::min(halt.others.size(), named_max);
  if (!halt.others.empty() && left != 0) text += "; and " + std::to_string(left) + " more ranks";
  return text;
}

}  // namespace

const char* freeze_name(Freeze freeze) {
  switch (freeze) {
    case Freeze::none:
      return "none";
    case Freeze::updating:
      return "updating";
    case Freeze::held:
      return "held";
    case Freeze::capturing:
      return "capturing";
    case Freeze::captured:
      return "captured";
    case Freeze::refused:
      break;
  }
  return "refused";
}

bool justifies_halt(const Suspicion& suspicion) {
  return !suspicion.culprits.empty() && !suspicion.is_everybody &&
         suspicion.culprits.front().standing.trouble != RankTrouble::slow;
}

Halt advance(Halt halt, const std::vector<HaltedRank>& ranks, bool decides_now, bool ends_now) {
  halt.ranks = static_cast<std::uint32_t>(ranks.size());
  if (!halt.iteration && (decides_now || none_awaited(halt, ranks, is_held))) {
    for (const HaltedRank& rank : ranks) {
      const FreezeAnswer answer = answer_to(halt, rank);
      if (is_held(answer.freeze)) halt.iteration = std::max(halt.iteration.value_or(-1), answer.iteration);
    }
  }
  halt.captured = 0;
  halt.others.clear();
  for (const HaltedRank& rank : ranks) {
    const FreezeAnswer answer = answer_to(halt, rank);
    if (answer.freeze == Freeze::captured && answer.iteration == halt.iteration)
      ++halt.captured;
    else if (halt.others.size() < unfrozen_max)
      halt.others.push_back({rank.rank, rank.node, answer.freeze, answer.iteration});
  }
  halt.is_over = ends_now || none_awaited(halt, ranks, has_ended);
  return halt;
}

std::string explain(const Halt& halt, const NameOf& name_of) {
  if (halt.incarnation == 0) return "";
  std::string text = "incarnation " + std::to_string(halt.incarnation) + " is halted";
  if (halt.iteration) text += " at iteration " + std::to_string(*halt.iteration);
  if (!halt.culprits.empty()) {
    Suspicion why;
    why.culprits = halt.culprits;
    why.count = static_cast<std::uint32_t>(halt.culprits.size());
    text += ", because " + explain(why, name_of);
  } else if (halt.reporter != no_rank) {
    text += ", because a communication failed on rank " + std::to_string(halt.reporter) + " on node " +
            name_of(halt.reporter_node);
  }
  text += "; captured: " + std::to_string(halt.captured) + " of " + std::to_string(halt.ranks) + " ranks";
  return text + unfrozen_text(halt, name_of);
}

}  // namespace ckpt::core
