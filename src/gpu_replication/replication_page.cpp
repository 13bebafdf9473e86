#include "gpu_replication/replication_page.hpp"

#include <algorithm>
#include <cstring>

namespace ckpt::arena {
namespace {

using Words = std::array<std::uint64_t, replication_state_words>;
static_assert(sizeof(Words) == sizeof(ReplicationWords::ReplicationSlot::words));

constexpr std::uint64_t has_id = 1, has_given_up = 2;
constexpr std::size_t id_at = 6;
static_assert(id_at * 8 + communicator_id_bytes == sizeof(Words));

Words to_words(const ReplicationState& word) {
  Words words{};
  words[0] = (word.id ? has_id : 0) | (word.state.has_given_up ? has_given_up : 0);
  words[1] = word.state.chunk_bytes;
  words[2] = word.state.checkpoint;
  words[3] = word.state.length_bytes;
  words[4] = word.state.promised;
  words[5] = word.piece_bytes;
  if (word.id) std::memcpy(&words[id_at], word.id->data(), communicator_id_bytes);
  return words;
}

ReplicationState from_words(const Words& words) {
  ReplicationState word;
  if ((words[0] & has_id) != 0) std::memcpy(word.id.emplace().data(), &words[id_at], communicator_id_bytes);
  word.piece_bytes = words[5];
  word.state = {words[2], words[3], words[1], words[4], (words[0] & has_given_up) != 0};
  return word;
}

}  // namespace

// The sequence is odd while words are stored. Each store of a word releases the earlier stores. So a reader that loads
// a new word and then the sequence finds the odd sequence, or a later one.
void ReplicationPage::write(ReplicationWords::ReplicationSlot& to, const ReplicationState& word) {
  const Words words = to_words(word);
  const std::uint64_t sequence = to.sequence.load(std::memory_order_relaxed) | 1;  // odd already: the writer died
  to.sequence.store(sequence, std::memory_order_relaxed);
  for (std::size_t i = 0; i < words.size(); ++i) to.words[i].store(words[i], std::memory_order_release);
  to.sequence.store(sequence + 1, std::memory_order_release);
}

// Returns nothing if nothing was written yet, or if the writer keeps writing or died while writing. In the latter case
// the caller keeps what it has read before.
std::optional<ReplicationState> ReplicationPage::read(const ReplicationWords::ReplicationSlot& from) {
  constexpr int attempts = 64;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const std::uint64_t sequence = from.sequence.load(std::memory_order_acquire);
    if (sequence == 0) return std::nullopt;
    if (sequence % 2 != 0) continue;
    Words words;
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = from.words[i].load(std::memory_order_acquire);
    if (from.sequence.load(std::memory_order_relaxed) == sequence) return from_words(words);
  }
  return std::nullopt;
}

CheckpointId ReplicationPage::taken(std::size_t place) const {
  return CheckpointId::from_word(words_->taken[place].load(std::memory_order_acquire));
}

void ReplicationPage::taken(std::size_t place, CheckpointId checkpoint) {
  if (taken(place) < checkpoint) words_->taken[place].store(checkpoint.word(), std::memory_order_release);
}

void ReplicationPage::fail(std::string_view sentence) {
  if (words_->has_failed.load(std::memory_order_acquire) != 0) return;
  const std::size_t length = std::min(sentence.size(), sizeof(words_->failure) - 1);
  std::memcpy(words_->failure, sentence.data(), length);
  words_->failure[length] = 0;
  words_->has_failed.store(1, std::memory_order_release);
}

std::optional<std::string> ReplicationPage::failure() const {
  if (words_->has_failed.load(std::memory_order_acquire) == 0) return std::nullopt;
  std::string text(words_->failure, ::strnlen(words_->failure, sizeof(words_->failure)));
  for (char& letter : text)
    if (letter < ' ' || letter > '~') letter = '?';
  return text;
}

}  // namespace ckpt::arena
