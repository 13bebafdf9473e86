#include "placement/protection.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <vector>

namespace ckpt::placement {

namespace {

// If `lost` of `nodes` nodes are lost: the probability that exactly `here` of them are in a given group of `members`.
double chance_of(std::uint32_t here, std::uint32_t members, std::uint32_t nodes, std::uint32_t lost) {
  if (here > members || here > lost || lost - here > nodes - members) return 0;
  double chance = 1;  // C(members, here) * C(nodes - members, lost - here) / C(nodes, lost), factor by factor
  for (std::uint32_t i = 0; i < here; ++i) {
    chance *= static_cast<double>(members - i) / (i + 1) * (lost - i) / (nodes - i);
  }
  const std::uint32_t spared = members - here;
  for (std::uint32_t i = 0; i < spared; ++i) {
    chance *= static_cast<double>(nodes - lost - i) / (nodes - here - i);
  }
  return chance;
}

// A group keeps all its shards if it loses no more members than it tolerates.
struct Group {
  std::uint32_t members = 0;
  std::uint32_t tolerated = 0;
};

Group group_of(const Protection& protection) {
  if (!protection.has_parity()) return {protection.copies, protection.copies - 1};
  if (protection.copies != 1)
    throw std::invalid_argument(
        "cannot compute odds for copies and parity together: ask for copies alone or for parity alone");
  return {protection.members, protection.rows};
}

[[noreturn]] void refuse() {
  throw std::invalid_argument(
      "must be copies(m), xor(n), rs(n,p), or copies and parity as in copies(2)+xor(8): m from 1 to 16, p from 1 to 4, "
      "n from p + 1 to 64 (for xor: from 2)");
}

// Reads the numbers of "rs(8,2)" or "rs:8,2". `text` is what follows the bracket or colon: "8,2)" or "8,2".
std::vector<std::uint32_t> numbers_in(std::string_view text, bool is_bracketed) {
  if (is_bracketed && !text.ends_with(')')) refuse();
  if (is_bracketed) text.remove_suffix(1);
  std::vector<std::uint32_t> numbers;
  for (;;) {
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, numbers.emplace_back());
    if (error != std::errc()) refuse();
    if (rest == end) return numbers;
    if (*rest != ',') refuse();
    text.remove_prefix(static_cast<std::size_t>(rest - text.data()) + 1);
  }
}

void parse_term(std::string_view term, std::optional<std::uint32_t>& copies, Protection& protection) {
  const std::size_t word_end = term.find_first_of("(:");
  if (word_end == std::string_view::npos) refuse();
  const std::string_view word = term.substr(0, word_end);
  const auto numbers = numbers_in(term.substr(word_end + 1), term[word_end] == '(');
  const std::size_t wanted = word == "rs" ? 2 : 1;
  if (numbers.size() != wanted) refuse();
  if (word == "copies" && !copies && numbers[0] >= 1 && numbers[0] <= 16) {
    copies = numbers[0];
  } else if ((word == "xor" || word == "rs") && !protection.has_parity()) {
    protection.members = numbers[0];
    protection.rows = word == "rs" ? numbers[1] : 1;
    if (protection.rows < 1 || protection.rows > max_parity_rows) refuse();
    if (protection.members <= protection.rows || protection.members > max_parity_members) refuse();
  } else {
    refuse();
  }
}

}  // namespace

std::string name(const Protection& protection) {
  std::string copies = "copies(" + std::to_string(protection.copies) + ")";
  if (!protection.has_parity()) return copies;
  const std::string members = std::to_string(protection.members);
  const std::string parity =
      protection.rows == 1 ? "xor(" + members + ")" : "rs(" + members + "," + std::to_string(protection.rows) + ")";
  return protection.copies == 1 ? parity : copies + "+" + parity;
}

Protection protection_named(std::string_view text) {
  std::optional<std::uint32_t> copies;
  Protection protection;
  while (true) {
    const std::size_t plus = text.find('+');
    parse_term(text.substr(0, plus), copies, protection);
    if (plus == std::string_view::npos) break;
    text.remove_prefix(plus + 1);
  }
  protection.copies = copies.value_or(1);
  return protection;
}

double extra_stored(const Protection& protection) {
  const auto [members, tolerated] = group_of(protection);
  return protection.has_parity() ? static_cast<double>(tolerated) / (members - tolerated) : tolerated;
}

double sent(const Protection& protection, Route route) {
  const auto [members, tolerated] = group_of(protection);
  if (!protection.has_parity() || route == Route::direct) return tolerated;
  if (route == Route::local) return 0;
  return static_cast<double>(members - 1) / (members - tolerated);
}

double recoverable(const Protection& protection, std::uint32_t nodes, std::uint32_t lost) {
  const auto [members, tolerated] = group_of(protection);
  if (lost > nodes) {
    throw std::invalid_argument(std::to_string(lost) + " lost nodes are too many: there are only " +
                                std::to_string(nodes) + " nodes");
  }
  if (members == 0 || nodes == 0 || nodes % members != 0) {
    throw std::invalid_argument(std::to_string(nodes) + " nodes cannot be cut into groups of " +
                                std::to_string(members) + ": give a multiple of the group size");
  }
  // odds[r]: the probability that all groups so far keep their shards, given that r of their nodes are lost.
  std::vector<double> odds(lost + 1, 0.0);
  odds[0] = 1;
  for (std::uint32_t so_far = members; so_far <= nodes; so_far += members) {
    std::vector<double> next(lost + 1, 0.0);
    for (std::uint32_t gone = 0; gone <= std::min(lost, so_far); ++gone) {
      for (std::uint32_t here = 0; here <= std::min(tolerated, gone); ++here) {
        next[gone] += chance_of(here, members, so_far, gone) * odds[gone - here];
      }
    }
    odds = std::move(next);
  }
  return odds[lost];
}

}  // namespace ckpt::placement
