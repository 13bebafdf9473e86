#include "cli/timeline/schedule_text.hpp"

#include <gtest/gtest.h>

namespace ckpt::cli {
namespace {

using nlohmann::json;

// As frames bring it: what is not negative is unsigned.
json in_idle_spans() {
  return json::parse(R"({
    "state": "idle spans", "chunks": 60, "forced": 0,
    "ranks": [{"rank": 0, "state": "learned", "iterations": 20, "iterations_wanted": 20, "iteration_ms": 250.4,
               "idle_ms": 81.26, "spans": [{"start_ms": 0, "mean_ms": 40, "deviation_ms": 1}, {}],
               "normalized_deviation": 0.0412, "relearned": 0, "complaint": ""}],
    "link": {"startup_us": 250, "bytes_per_s": 1.25e8},
    "plan": {"bytes": 12582912, "chunks": 6, "sent_ms": 4.5, "overrun_ms": 0, "every": 1}})");
}

TEST(ScheduleText, DescribesIdleSpanSendingInThreeLines) {
  EXPECT_EQ(schedule_text(in_idle_spans()),
            "  schedule: chunks leave in idle spans, 60 so far; link 119 MiB/s after 0.25 ms a chunk\n"
            "    rank 0: 250 ms an iteration, 81.3 ms of it idle in 2 spans, deviation 4.1 %\n"
            "    plan: 12.0 MiB in 6 chunks, 4.5 ms to send: fits into the idle spans of one iteration\n");
}

TEST(ScheduleText, MentionsBubblesOnlyIfThereAreAny) {
  json schedule = in_idle_spans();
  schedule["ranks"][0]["device"] =
      json::parse(R"({"bubbles": 6, "bubble_ms": 31.25, "until_update_ms": 240, "iterations": 20})");
  const std::string text = ", deviation 4.1 %, device idle for 31.2 ms in 6 bubbles of the 240 ms before updates\n";
  EXPECT_NE(schedule_text(schedule).find(text), std::string::npos) << schedule_text(schedule);
  schedule["ranks"][0]["device"]["bubbles"] = 0u;
  EXPECT_EQ(schedule_text(schedule), schedule_text(in_idle_spans()));
}

TEST(ScheduleText, ShowsLearningProgress) {
  const json schedule = json::parse(R"({
    "state": "learning", "link": null, "plan": null,
    "ranks": [{"rank": 3, "state": "learning", "iterations": 7, "iterations_wanted": 20}]})");
  const std::string rank = "    rank 3: learning, 7 of 20 iterations seen\n";
  EXPECT_EQ(schedule_text(schedule), "  schedule: learning, and chunks leave when no communication runs\n" + rank);
}

TEST(ScheduleText, ShowsTheOverrunAndACadenceThatFits) {
  json schedule = in_idle_spans();
  schedule["plan"]["overrun_ms"] = 12;
  for (const auto& [every, text] : {std::pair(2u, "2nd"), std::pair(3u, "3rd"), std::pair(11u, "11th"),
                                    std::pair(21u, "21st"), std::pair(112u, "112th"), std::pair(4u, "4th")}) {
    schedule["plan"]["every"] = every;
    EXPECT_NE(schedule_text(schedule).find("to send: prolongs an iteration by 12.0 ms; a snapshot every " +
                                           std::string(text) + " iteration would prolong none\n"),
              std::string::npos)
        << schedule_text(schedule);
  }
  schedule["plan"]["every"] = 0u;
  EXPECT_NE(schedule_text(schedule).find("12.0 ms, and rarer snapshots would not avoid that\n"), std::string::npos);
}

TEST(ScheduleText, ShowsComplaintsForcedChunksAndRelearning) {
  json schedule = in_idle_spans();
  schedule["forced"] = 2u;
  schedule["ranks"][0]["relearned"] = 1u;
  schedule["ranks"][0]["complaint"] = "an end without a beginning";
  const std::string text = schedule_text(schedule);
  EXPECT_NE(text.find("60 so far, 2 of them although no idle span was long enough; link"), std::string::npos) << text;
  EXPECT_NE(text.find("4.1 %, learned anew once; an end without a beginning\n"), std::string::npos) << text;
}

TEST(ScheduleText, OmitsMissingAndMalformedFields) {
  EXPECT_EQ(schedule_text(nullptr), "");
  EXPECT_EQ(schedule_text(json::array({1})), "");
  EXPECT_EQ(schedule_text({{"state", "at once"}, {"ranks", json::array()}, {"link", nullptr}, {"plan", nullptr}}),
            "  schedule: chunks leave at once\n");
  const json whole = in_idle_spans();
  for (const auto& [name, value] : whole.items()) {
    json strange = whole;
    strange[name] = json::array({nullptr, "x", json::array()});
    EXPECT_EQ(schedule_text(strange).substr(0, 12), "  schedule: ") << name;
  }
}

}  // namespace
}  // namespace ckpt::cli
