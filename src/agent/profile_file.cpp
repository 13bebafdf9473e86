#include "agent/profile_file.hpp"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace ckpt::agent {
namespace {

using nlohmann::json;

constexpr std::size_t profile_bytes_max = 4u << 20;

std::string path_of(const std::string& directory, core::Rank rank) {
  return directory + "/rank-" + std::to_string(rank) + ".profile";
}

std::optional<double> seconds(const json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number()) return std::nullopt;
  const double value = at->get<double>();
  return std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

}  // namespace

std::string to_text(const schedule::Profile& profile) {
  json spans = json::array();
  for (const auto& span : profile.spans)
    spans.push_back({{"start_s", span.start_s}, {"mean_s", span.mean_s}, {"deviation_s", span.deviation_s}});
  return json{{"iterations", profile.iterations},
              {"iteration_s", profile.iteration_s},
              {"normalized_deviation", profile.normalized_deviation},
              {"spans", std::move(spans)}}
      .dump();
}

std::optional<schedule::Profile> profile_from(const std::string& text) {
  const json read = json::parse(text, nullptr, false);
  if (!read.is_object()) return std::nullopt;
  const auto iterations = read.find("iterations");
  const auto iteration_s = seconds(read, "iteration_s"), deviation = seconds(read, "normalized_deviation");
  const auto spans = read.find("spans");
  if (iterations == read.end() || !iterations->is_number_unsigned() || iterations->get<std::uint64_t>() == 0 ||
      iterations->get<std::uint64_t>() > UINT32_MAX || !iteration_s || !deviation || spans == read.end() ||
      !spans->is_array() || spans->empty())
    return std::nullopt;
  schedule::Profile profile;
  profile.iterations = iterations->get<std::uint32_t>();
  profile.iteration_s = *iteration_s;
  profile.normalized_deviation = *deviation;
  for (const json& span : *spans) {
    if (!span.is_object()) return std::nullopt;
    const auto start = seconds(span, "start_s"), mean = seconds(span, "mean_s"), off = seconds(span, "deviation_s");
    if (!start || !mean || !off) return std::nullopt;
    profile.spans.push_back({*start, *mean, *off});
  }
  return profile;
}

void save_profile(const std::string& directory, core::Rank rank, const schedule::Profile& profile) {
  const std::string path = path_of(directory, rank), draft = path + ".new";
  {
    std::ofstream file(draft, std::ios::trunc);
    file << to_text(profile);
    file.close();
    if (!file) return;
  }
  std::rename(draft.c_str(), path.c_str());
}

std::optional<schedule::Profile> load_profile(const std::string& directory, core::Rank rank) {
  std::ifstream file(path_of(directory, rank));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file || text.size() > profile_bytes_max) return std::nullopt;
  return profile_from(text);
}

}  // namespace ckpt::agent
