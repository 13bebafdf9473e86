// Where a trainer and its agent tell each other how the path from GPU to GPU goes: behind the first page of the rank's
// landing file, without locks and system calls. The trainer tells its own word, which the agent carries to the other
// members of the group; the agent puts down what they told, and up to which version it has taken what landed. Who
// changes something rings the other side's bell in the control page.
//
// A view into the landing's mapping, which outlives it. Each side uses its own functions; setters one at a time.
// Either side may die at any store: what is half written is not read, and is written anew by whoever comes next.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "arena/format.hpp"
#include "protocol/version.hpp"
#include "schedule/agreement.hpp"

namespace ckpt::arena {

// What a member of a group tells all others, all of it each time.
struct PathWord {
  std::optional<std::array<std::byte, path_id_bytes>> id;  // of the communicator: from member 0
  std::uint64_t piece_bytes = 0;                           // that its pieces have at most; 0: not known yet
  schedule::Agreement::State state;
  bool operator==(const PathWord&) const = default;
};

class PathBoard {
 public:
  explicit PathBoard(PathWords& words) : words_(&words) {}

  // Trainer.
  void tell(const PathWord& word) { write(words_->own, word); }
  std::optional<PathWord> heard(std::size_t member) const { return read(words_->members[member]); }
  // What landed at the place up to that version may be overwritten.
  Version taken(std::size_t place) const;
  // The path is over for this life, and this is why: a sentence for people. The first one counts.
  void fail(std::string_view sentence);

  // Agent. Nothing that the trainer wrote is more than it says: text of bounded length, numbers that may be anything.
  std::optional<PathWord> told() const { return read(words_->own); }
  std::optional<std::string> failure() const;
  void hear(std::size_t member, const PathWord& word) { write(words_->members[member], word); }
  // It never falls.
  void taken(std::size_t place, Version version);

 private:
  static void write(PathWords::Told& to, const PathWord& word);
  static std::optional<PathWord> read(const PathWords::Told& from);

  PathWords* words_;
};

}  // namespace ckpt::arena
