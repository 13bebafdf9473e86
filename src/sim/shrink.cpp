#include "sim/shrink.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace ckpt::sim {

namespace {

// How many runs to try with a set of faults. Without one fault, everything after it also changes by chance. So a set
// may violate the invariant in one run and not in another.
constexpr std::uint64_t shakes_max = 4;
// All sets of one size are tried, if there are at most so many. Then the first set that fails is one of the smallest.
constexpr std::uint64_t tried_max = 2000;

// Tells violations apart by kind: returns the first words, without numbers.
std::string kind_of(const Violation& violation) {
  constexpr std::size_t length = 28;
  std::string kind = violation.invariant + ": " + violation.text;
  std::erase_if(kind, [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
  return kind.substr(0, length);
}

class Shrinking {
 public:
  Shrinking(std::uint64_t seed, const std::function<void(std::uint64_t)>& progress)
      : settings_(draw_settings(seed)), progress_(progress) {}

  Shrunk find() {
    shrunk_.whole = run({});
    if (!shrunk_.whole.violation) return shrunk_;
    const std::size_t count = shrunk_.whole.plan.size();
    shrunk_.outcome = shrunk_.whole;
    for (std::size_t number = 1; number <= count; ++number) shrunk_.faults.insert(number);
    for (std::size_t size = 0; size < count; ++size) {
      if (shakes_max * sets_of(size, count) > tried_max) {
        drop_one_by_one();
        return shrunk_;
      }
      if (try_sets(size, count)) break;
    }
    shrunk_.is_fewest = true;
    return shrunk_;
  }

 private:
  static std::uint64_t sets_of(std::size_t size, std::size_t count) {
    std::uint64_t sets = 1;
    for (std::size_t i = 0; i < size; ++i) sets = sets * (count - i) / (i + 1);
    return sets;
  }

  Outcome run(std::optional<std::set<std::size_t>> faults, std::uint64_t shake = 0) {
    Settings settings = settings_;
    settings.only_faults = std::move(faults);
    settings.shake = shake;
    Outcome outcome = World(settings, nullptr).run();
    progress_(++shrunk_.runs);
    return outcome;
  }

  bool fails_with(const std::set<std::size_t>& faults) {
    for (std::uint64_t shake = 0; shake < shakes_max; ++shake) {
      Outcome outcome = run(faults, shake);
      if (!outcome.violation || kind_of(*outcome.violation) != kind_of(*shrunk_.whole.violation)) continue;
      shrunk_.faults = faults;
      shrunk_.shake = shake;
      shrunk_.outcome = std::move(outcome);
      return true;
    }
    return false;
  }

  bool try_sets(std::size_t size, std::size_t count) {
    std::vector<bool> is_kept(count, false);
    std::fill(is_kept.begin(), is_kept.begin() + static_cast<std::ptrdiff_t>(size), true);
    do {
      std::set<std::size_t> faults;
      for (std::size_t i = 0; i < count; ++i)
        if (is_kept[i]) faults.insert(i + 1);
      if (fails_with(faults)) return true;
    } while (std::prev_permutation(is_kept.begin(), is_kept.end()));
    return false;
  }

  void drop_one_by_one() {
    for (bool goes_on = true; std::exchange(goes_on, false);) {
      const auto faults = shrunk_.faults;
      for (const std::size_t number : faults) {
        auto fewer = shrunk_.faults;
        fewer.erase(number);
        goes_on = fails_with(fewer) || goes_on;
      }
    }
  }

  const Settings settings_;
  const std::function<void(std::uint64_t)>& progress_;
  Shrunk shrunk_;
};

std::string numbers_text(const std::set<std::size_t>& numbers) {
  std::string list;
  for (const std::size_t number : numbers) list += text(list.empty() ? "" : ",", number);
  return list.empty() ? "none" : list;
}

}  // namespace

Shrunk shrink(std::uint64_t seed, const std::function<void(std::uint64_t runs)>& progress) {
  return Shrinking(seed, progress).find();
}

std::string replay_options(const Settings& settings) {
  std::string options = text("--seed ", settings.seed);
  if (settings.only_faults) options += " --faults " + numbers_text(*settings.only_faults);
  if (settings.shake != 0) options += text(" --shake ", settings.shake);
  return options;
}

std::string shrunk_text(const Shrunk& shrunk) {
  if (!shrunk.whole.violation) return text("seed ", shrunk.whole.seed, " violates nothing\n");
  const auto said = [](const Outcome& outcome) {
    return text(" at ", outcome.virtual_ms, " ms: ", outcome.violation->invariant, ": ", outcome.violation->text, "\n");
  };
  std::string report =
      text("seed ", shrunk.whole.seed, ", ", shrunk.whole.plan.size(), " faults", said(shrunk.whole), "with ",
           shrunk.faults.size(), shrunk.is_fewest ? " of them, the fewest," : " of them,", said(shrunk.outcome));
  for (const std::size_t number : shrunk.faults)
    report += text("  ", number, ": ", shrunk.whole.plan[number - 1], "\n");
  Settings settings;
  settings.seed = shrunk.whole.seed;
  settings.only_faults = shrunk.faults;
  settings.shake = shrunk.shake;
  return report + "  again: ckpt_sim " + replay_options(settings) + " --trace\n";
}

}  // namespace ckpt::sim
