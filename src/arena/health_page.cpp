#include "arena/health_page.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>

namespace ckpt::arena {
namespace {

using Record = std::array<std::uint64_t, health_words>;

constexpr std::size_t texts_at = 10;  // word
constexpr std::size_t texts_bytes = (health_words - texts_at) * 8;
constexpr std::size_t reason_max = 32, node_max = 64, text_max = 512, advice_max = 320, suspicion_max = 320;
static_assert(reason_max + node_max + text_max + advice_max + suspicion_max + 5 <= texts_bytes);

std::uint64_t pair(std::uint32_t high, std::uint32_t low) { return std::uint64_t{high} << 32 | low; }
std::uint32_t high(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); }
std::uint32_t low(std::uint64_t word) { return static_cast<std::uint32_t>(word); }
std::int64_t duration(std::uint64_t word) {
  return static_cast<std::int64_t>(std::min<std::uint64_t>(word, INT64_MAX));
}

Record to_words(const HealthNews& news) {
  Record words{};
  words[0] = pair(news.rank, news.state);
  words[1] = static_cast<std::uint64_t>(news.lasts_ms);
  words[2] = static_cast<std::uint64_t>(news.at_risk_ms);
  words[3] = static_cast<std::uint64_t>(news.at_risk_iterations);
  words[4] = static_cast<std::uint64_t>(news.allowed_ms);
  words[5] = news.committed.word();
  words[6] = pair(news.copies_now, news.copies);
  words[7] = pair(news.parity_now, news.parity);
  std::string texts;
  const auto add = [&](const std::string& text, std::size_t bytes_max) {
    texts += text.substr(0, bytes_max);
    texts += '\0';
  };
  add(news.reason, reason_max);
  add(news.node, node_max);
  add(news.text, text_max);
  add(news.advice, advice_max);
  add(news.suspicion, suspicion_max);
  std::memcpy(&words[texts_at], texts.data(), texts.size());
  return words;
}

HealthNews from_words(const Record& words) {
  HealthNews news;
  news.state = static_cast<std::uint8_t>(std::min(low(words[0]), 2u));
  news.rank = high(words[0]);
  news.lasts_ms = duration(words[1]);
  news.at_risk_ms = duration(words[2]);
  news.at_risk_iterations = duration(words[3]);
  news.allowed_ms = duration(words[4]);
  news.committed = CheckpointId::from_word(words[5]);
  news.copies_now = high(words[6]);
  news.copies = low(words[6]);
  news.parity_now = high(words[7]);
  news.parity = low(words[7]);
  std::array<char, texts_bytes> texts;
  std::memcpy(texts.data(), &words[texts_at], texts.size());
  const char* at = texts.data();
  for (std::string* text : {&news.reason, &news.node, &news.text, &news.advice, &news.suspicion}) {
    const std::size_t left = static_cast<std::size_t>(texts.data() + texts.size() - at);
    const std::size_t length = ::strnlen(at, left);
    text->assign(at, length);
    at += std::min(length + 1, left);
  }
  return news;
}

}  // namespace

// The sequence is odd while words are stored. Each store releases the stores before it.
void HealthPage::publish(const HealthNews& news) {
  const Record words = to_words(news);
  // The sequence is odd already if an earlier agent died while it wrote.
  const std::uint64_t sequence = words_->sequence.load(std::memory_order_relaxed) | 1;
  words_->sequence.store(sequence, std::memory_order_relaxed);
  for (std::size_t i = 0; i < words.size(); ++i) words_->words[i].store(words[i], std::memory_order_release);
  words_->sequence.store(sequence + 1, std::memory_order_release);
}

// Returns nothing if the agent stores at every attempt, or died while it stored. Then the verdict that the trainer read
// last still holds.
std::optional<HealthNews> HealthPage::read() const {
  constexpr int attempts = 64;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const std::uint64_t sequence = words_->sequence.load(std::memory_order_acquire);
    if (sequence == 0) return std::nullopt;
    if (sequence % 2 != 0) continue;
    Record words;
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = words_->words[i].load(std::memory_order_acquire);
    if (words_->sequence.load(std::memory_order_relaxed) == sequence) return from_words(words);
  }
  return std::nullopt;
}

}  // namespace ckpt::arena
