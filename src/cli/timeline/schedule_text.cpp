#include "cli/timeline/schedule_text.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

#include "cli/table.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;

std::optional<double> number(const json& of, const char* name) {
  const auto field = of.find(name);
  return field != of.end() && field->is_number() ? std::optional(field->get<double>()) : std::nullopt;
}
std::optional<std::uint64_t> count(const json& of, const char* name) {
  const auto field = of.find(name);
  return field != of.end() && field->is_number_unsigned() ? std::optional(field->get<std::uint64_t>()) : std::nullopt;
}
std::string words(const json& of, const char* name) {
  const auto field = of.find(name);
  return field != of.end() && field->is_string() ? field->get<std::string>() : "";
}
// Null if there is none.
json object(const json& of, const char* name) {
  const auto field = of.find(name);
  return field != of.end() && field->is_object() ? *field : json();
}

// "0.25 ms", "12.3 ms", "123 ms", "3.4 s": iterations may be short.
std::string fine_ms(double ms) {
  if (ms >= 100) return human_ms(ms);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f ms", ms < 1 ? 2 : 1, ms);
  return text.data();
}
std::string percent(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * share);
  return text.data();
}
std::string bytes_text(double bytes) { return human_bytes(static_cast<std::uint64_t>(std::clamp(bytes, 0.0, 1e18))); }

std::string ordinal(std::uint64_t n) {
  const std::uint64_t last = n % 10;
  const bool is_teen = n / 10 % 10 == 1;
  return std::to_string(n) + (is_teen || last == 0 || last > 3 ? "th" : last == 1 ? "st" : last == 2 ? "nd" : "rd");
}

std::string profile_text(const json& rank) {
  if (words(rank, "state") == "learning")
    return "learning, " + std::to_string(count(rank, "iterations").value_or(0)) + " of " +
           std::to_string(count(rank, "iterations_wanted").value_or(0)) + " iterations seen";
  std::string text;
  if (const auto iteration = number(rank, "iteration_ms")) text += fine_ms(*iteration) + " an iteration";
  if (const auto idle = number(rank, "idle_ms")) text += ", " + fine_ms(*idle) + " of it idle";
  if (const auto spans = rank.find("spans"); spans != rank.end() && spans->is_array())
    text += " in " + std::to_string(spans->size()) + " spans";
  if (const auto deviation = number(rank, "normalized_deviation")) text += ", deviation " + percent(*deviation);
  return text;
}

// When the rank's device idles. Nothing if it has no bubbles.
std::string device_text(const json& device) {
  const auto bubbles = count(device, "bubbles");
  const auto bubble_ms = number(device, "bubble_ms");
  if (bubbles.value_or(0) == 0 || !bubble_ms) return "";
  std::string text = ", device idle for " + fine_ms(*bubble_ms) + " in " + std::to_string(*bubbles) + " bubbles";
  if (const auto stretch = number(device, "until_update_ms"))
    text += " of the " + fine_ms(*stretch) + " before updates";
  return text;
}

std::string rank_text(const json& rank) {
  const auto index = count(rank, "rank");
  std::string text = "rank " + (index ? std::to_string(*index) : "?") + ": " + profile_text(rank);
  if (const json device = object(rank, "device"); !device.is_null()) text += device_text(device);
  if (const auto relearned = count(rank, "relearned"); relearned.value_or(0) != 0)
    text += ", learned anew " + (*relearned == 1 ? "once" : std::to_string(*relearned) + " times");
  if (const std::string complaint = words(rank, "complaint"); !complaint.empty()) text += "; " + complaint;
  return text;
}

std::string plan_text(const json& plan) {
  std::string text = "plan: " + bytes_text(number(plan, "bytes").value_or(0));
  if (const auto chunks = count(plan, "chunks")) text += " in " + std::to_string(*chunks) + " chunks";
  if (const auto sent = number(plan, "sent_ms")) text += ", " + fine_ms(*sent) + " to send";
  const double overrun_ms = number(plan, "overrun_ms").value_or(0);
  if (overrun_ms <= 0) return text + ": fits into the idle spans of one iteration";
  text += ": prolongs an iteration by " + fine_ms(overrun_ms);
  const auto every = count(plan, "every");
  if (!every) return text;
  if (*every == 0) return text + ", and rarer snapshots would not avoid that";
  return text + "; a snapshot every " + ordinal(*every) + " iteration would prolong none";
}

std::string state_text(const json& schedule) {
  std::string state = words(schedule, "state");
  if (state == "idle spans") return "chunks leave in idle spans";
  if (state == "at once") return "chunks leave at once";
  if (state != "learning") return state;
  return "learning, and chunks leave when no communication runs";
}

std::string chunks_text(const json& schedule) {
  std::string text;
  if (const auto chunks = count(schedule, "chunks")) text += ", " + std::to_string(*chunks) + " so far";
  if (const auto forced = count(schedule, "forced"); forced.value_or(0) != 0)
    text += ", " + std::to_string(*forced) + " of them although no idle span was long enough";
  const json link = object(schedule, "link");
  if (const auto rate = number(link, "bytes_per_s")) {
    text += "; link " + bytes_text(*rate) + "/s";
    if (const auto startup = number(link, "startup_us")) text += " after " + fine_ms(*startup / 1000) + " a chunk";
  }
  return text;
}

}  // namespace

std::string schedule_text(const json& schedule) {
  if (!schedule.is_object()) return "";
  std::string text = "  schedule: " + state_text(schedule) + chunks_text(schedule) + "\n";
  if (const auto ranks = schedule.find("ranks"); ranks != schedule.end() && ranks->is_array())
    for (const json& rank : *ranks)
      if (rank.is_object()) text += "    " + rank_text(rank) + "\n";
  if (const json plan = object(schedule, "plan"); !plan.is_null()) text += "    " + plan_text(plan) + "\n";
  return text;
}

}  // namespace ckpt::cli
