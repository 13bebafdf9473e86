#include "core/suspicions.hpp"

#include <algorithm>
#include <cstdio>
#include <tuple>

namespace ckpt::core {
namespace {

constexpr std::uint32_t straggler_least_ms = 50;  // below, other ranks hardly wait
constexpr std::size_t named_max = 3;              // in a sentence

using Position = std::pair<std::int64_t, std::uint32_t>;

Position position_of(const Culprit& each) { return {each.standing.iteration, each.standing.begun.value_or(0)}; }

bool is(const Culprit& each, RankTrouble trouble) { return each.standing.trouble == trouble; }

bool is_gone(const Culprit& each) { return is(each, RankTrouble::dead) || is(each, RankTrouble::stopped); }

void name(Suspicion& suspicion, std::vector<Culprit> culprits) {
  suspicion.count = static_cast<std::uint32_t>(culprits.size());
  culprits.resize(std::min(culprits.size(), culprits_max));
  suspicion.culprits = std::move(culprits);
}

template <class Is>
std::vector<Culprit> those(const std::vector<Culprit>& all, Is is_one) {
  std::vector<Culprit> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found), is_one);
  return found;
}

// True if number n of one rank's communications is number n of every other's.
bool are_comparable(const std::vector<Culprit>& all) {
  return std::all_of(all.begin(), all.end(), [&](const Culprit& each) {
    const RankStanding &standing = each.standing, &first = all.front().standing;
    return standing.begun && standing.per_iteration && standing.per_iteration == first.per_iteration;
  });
}

std::vector<Culprit> least_far(const std::vector<Culprit>& all, bool by_communication) {
  const auto position = [&](const Culprit& each) {
    return by_communication ? position_of(each) : Position{each.standing.iteration, 0};
  };
  const auto lowest = std::min_element(all.begin(), all.end(),
                                       [&](const Culprit& a, const Culprit& b) { return position(a) < position(b); });
  return those(all, [&](const Culprit& each) { return position(each) == position(*lowest); });
}

// Where they wait for the culprits: the furthest place that anybody waits in.
void await(Suspicion& suspicion, const std::vector<Culprit>& waiting, const std::vector<Culprit>& culprits) {
  if (waiting.empty()) return;
  const auto furthest = std::max_element(waiting.begin(), waiting.end(), [](const Culprit& a, const Culprit& b) {
    return position_of(a) < position_of(b);
  });
  std::vector<Culprit> placed = those(culprits, [](const Culprit& each) { return each.standing.begun.has_value(); });
  placed.insert(placed.end(), waiting.begin(), waiting.end());
  suspicion.waiting = static_cast<std::uint32_t>(waiting.size());
  suspicion.iteration = furthest->standing.iteration;
  if (are_comparable(placed)) suspicion.communication = position_of(*furthest).second;
}

std::string in_seconds(TimeMs ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ms) / 1000);
  return text;
}

const char* process_text(const RankStanding& standing) {
  switch (standing.trouble) {
    case RankTrouble::dead:
      return "its process has ended";
    case RankTrouble::stopped:
      return standing.process == 't' ? "a debugger has stopped its process" : "its process is stopped (SIGSTOP)";
    case RankTrouble::unreachable:
      return "its node does not answer";
    default:
      break;
  }
  switch (standing.process) {
    case 'R':
      return "its process runs without progress";
    case 'D':
      return "its process waits within the kernel, for a disk or a driver";
    case 'S':
      return "its process sleeps";
    default:
      return "the state of its process is not known";
  }
}

std::string rank_text(const Culprit& culprit, const NameOf& name_of) {
  return "rank " + std::to_string(culprit.standing.rank) + " on node " + name_of(culprit.node);
}

// Iteration k is under way once k - 1 was offered to snapshot().
std::string iteration_text(std::int64_t offered) { return "iteration " + std::to_string(offered + 1); }

std::string place_text(std::uint32_t communication, std::int64_t offered) {
  return "communication " + std::to_string(communication) + " of " + iteration_text(offered);
}

// It is known not to have come to the place where others wait. A dead or stopped rank may have come there.
bool has_not_joined(const Suspicion& suspicion, const Culprit& culprit) {
  if (suspicion.communication == 0) return false;
  const bool is_place_known = culprit.standing.begun || culprit.standing.iteration < suspicion.iteration;
  return is_place_known && position_of(culprit) < Position{suspicion.iteration, suspicion.communication};
}

std::string culprit_text(const Suspicion& suspicion, const Culprit& culprit, const NameOf& name_of) {
  const RankStanding& standing = culprit.standing;
  const std::string since = " for " + in_seconds(standing.still_ms);
  std::string text = rank_text(culprit, name_of);
  if (standing.trouble == RankTrouble::slow)
    return text + " computes " + in_seconds(standing.computing_ms) + " in an iteration, other ranks " +
           in_seconds(suspicion.usual_ms);
  if (standing.trouble == RankTrouble::waiting)
    text += " has waited in " + place_text(standing.begun.value_or(0), standing.iteration) + since;
  else if (has_not_joined(suspicion, culprit))
    text += " has not joined " + place_text(suspicion.communication, suspicion.iteration) + since;
  else
    text += " has made no progress in " + iteration_text(standing.iteration) + since;
  return text + ": " + process_text(standing);
}

}  // namespace

const char* trouble_name(RankTrouble trouble) {
  switch (trouble) {
    case RankTrouble::slow:
      return "slow";
    case RankTrouble::waiting:
      return "waiting";
    case RankTrouble::computing:
      return "computing";
    case RankTrouble::unreachable:
      return "unreachable";
    case RankTrouble::stopped:
      return "stopped";
    case RankTrouble::dead:
      break;
  }
  return "dead";
}

bool Suspicion::says_the_same(const Suspicion& other) const {
  const auto facts_of = [](const Culprit& each) {
    const RankStanding& standing = each.standing;
    return std::tie(each.node, standing.rank, standing.trouble, standing.iteration, standing.begun);
  };
  const auto same = [&](const Culprit& a, const Culprit& b) {
    const bool is_slow = is(a, RankTrouble::slow) && is(b, RankTrouble::slow);
    return is_slow ? a.standing.rank == b.standing.rank : facts_of(a) == facts_of(b);
  };
  return count == other.count && communication == other.communication && iteration == other.iteration &&
         is_everybody == other.is_everybody &&
         std::equal(culprits.begin(), culprits.end(), other.culprits.begin(), other.culprits.end(), same);
}

Suspicion find_culprits(std::vector<Culprit> in_trouble, std::uint32_t world_size) {
  Suspicion suspicion;
  std::sort(in_trouble.begin(), in_trouble.end(),
            [](const Culprit& a, const Culprit& b) { return a.standing.rank < b.standing.rank; });
  const auto waiting = those(in_trouble, [](const Culprit& each) { return is(each, RankTrouble::waiting); });
  auto culprits = those(in_trouble, is_gone);
  // A silent node is news of its own. It explains why others wait.
  const bool has_others = !waiting.empty() || !culprits.empty();
  culprits = those(in_trouble, [&](const Culprit& each) {
    return is_gone(each) || (has_others && is(each, RankTrouble::unreachable));
  });
  if (culprits.empty()) {
    const auto computing = those(in_trouble, [](const Culprit& each) { return is(each, RankTrouble::computing); });
    if (computing.empty() && waiting.size() != world_size) return suspicion;  // somebody may still come
    const auto& held_up = computing.empty() ? waiting : computing;
    culprits = least_far(held_up, are_comparable(held_up));
    suspicion.is_everybody = culprits.size() == world_size && world_size > 1;
  }
  if (!is(culprits.front(), RankTrouble::waiting)) {
    await(suspicion, waiting, culprits);
  } else if (suspicion.is_everybody) {
    suspicion.iteration = culprits.front().standing.iteration;
    if (are_comparable(culprits)) suspicion.communication = position_of(culprits.front()).second;
  }
  name(suspicion, std::move(culprits));
  return suspicion;
}

Suspicion find_stragglers(const std::vector<ComputingTime>& times, std::uint32_t world_size, std::uint32_t factor) {
  Suspicion suspicion;
  if (world_size < 2 || times.size() != world_size) return suspicion;
  std::vector<std::uint32_t> all_ms;
  for (const ComputingTime& time : times) {
    if (time.computing_ms == 0) return suspicion;
    all_ms.push_back(time.computing_ms);
  }
  const auto middle = all_ms.begin() + static_cast<std::ptrdiff_t>((all_ms.size() - 1) / 2);
  std::nth_element(all_ms.begin(), middle, all_ms.end());
  const std::uint32_t usual_ms = *middle;  // of two ranks, the faster one
  std::vector<Culprit> slow;
  for (const ComputingTime& time : times) {
    if (time.computing_ms < usual_ms + straggler_least_ms || time.computing_ms / factor < usual_ms) continue;
    slow.push_back({time.node, {}});
    slow.back().standing = {time.rank, 0, RankTrouble::slow, 0, -1, {}, 0, time.computing_ms};
  }
  suspicion.usual_ms = usual_ms;
  name(suspicion, std::move(slow));
  return suspicion.culprits.empty() ? Suspicion() : suspicion;
}

std::string explain(const Suspicion& suspicion, const NameOf& name_of) {
  if (suspicion.culprits.empty()) return "";
  if (suspicion.is_everybody) {
    const RankStanding& first = suspicion.culprits.front().standing;
    const std::string all = "all " + std::to_string(suspicion.count) + " ranks have ",
                      since = in_seconds(first.still_ms);
    if (first.trouble == RankTrouble::computing)
      return all + "made no progress in " + iteration_text(first.iteration) + " for " + since;
    const std::string place = suspicion.communication != 0 ? place_text(suspicion.communication, suspicion.iteration)
                                                           : "communications of " + iteration_text(suspicion.iteration);
    return all + "waited in " + place + " for " + since + ": the network or the communication library hangs";
  }
  std::string text;
  const std::size_t shown = std::min(suspicion.culprits.size(), named_max);
  for (std::size_t i = 0; i < shown; ++i)
    text += (i == 0 ? "" : "; ") + culprit_text(suspicion, suspicion.culprits[i], name_of);
  if (suspicion.count > shown) text += "; and " + std::to_string(suspicion.count - shown) + " more ranks";
  return text;
}

}  // namespace ckpt::core
