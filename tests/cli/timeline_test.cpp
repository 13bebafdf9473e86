// What becomes of agents' recordings, on the way to a file for Perfetto.
#include "cli/timeline/timeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

namespace ckpt::cli {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

json communication(std::uint64_t rank, std::int64_t begin_us, std::int64_t end_us) {
  return {{"kind", "communication"}, {"rank", rank}, {"begin_us", begin_us}, {"end_us", end_us}};
}
json iteration(std::uint64_t rank, std::int64_t at_us) {
  return {{"kind", "iteration"}, {"rank", rank}, {"at_us", at_us}};
}
json capture(std::uint64_t rank, std::int64_t k, std::int64_t begin_us, std::int64_t end_us) {
  return {{"kind", "capture"}, {"rank", rank}, {"iteration", k}, {"begin_us", begin_us}, {"end_us", end_us}};
}
json chunk(const std::string& peer, std::int64_t begin_us, std::int64_t end_us) {
  return {{"kind", "chunk"}, {"peer", peer},  {"shard", "rank0"},     {"incarnation", 1},
          {"iteration", 7},  {"bytes", 4096}, {"begin_us", begin_us}, {"end_us", end_us}};
}
json commit(std::int64_t k, std::int64_t at_us) {
  return {{"kind", "commit"}, {"incarnation", 1}, {"iteration", k}, {"at_us", at_us}};
}

Recording recording(const std::string& node, json events, std::int64_t now_us = 1'000'000) {
  return {"job", node, {{"job", "job"}, {"node", node}, {"now_us", now_us}, {"events", std::move(events)}}};
}

const Track* find_track(const NodeTimeline& node, const std::string& name) {
  for (const Track& track : node.tracks)
    if (track.name == name) return &track;
  return nullptr;
}
std::vector<Extent> extents(const NodeTimeline& node, const std::string& name) {
  std::vector<Extent> found;
  if (const Track* track = find_track(node, name))
    for (const Mark& mark : track->marks) found.push_back(mark.extent);
  return found;
}
std::vector<std::string> track_names(const NodeTimeline& node) {
  std::vector<std::string> names;
  for (const Track& track : node.tracks) names.push_back(track.name);
  return names;
}

// Iterations of 1000 us from 0 to 10'000 of two ranks, in which all kinds of things begin and end at random.
json random_events(std::uint32_t seed) {
  std::mt19937 random(seed);
  json events = json::array();
  for (std::int64_t at_us = 0; at_us <= 10'000; at_us += 1000)
    for (const std::uint64_t rank : {0, 1}) events.push_back(iteration(rank, at_us));
  for (int i = 0; i < 120; ++i) {
    const std::int64_t begin_us = random() % 9900;
    const std::int64_t end_us = begin_us + 1 + random() % 90;
    switch (random() % 5) {
      case 0:
        events.push_back(capture(random() % 2, i, begin_us, end_us));
        break;
      case 1:
        events.push_back(chunk("node" + std::to_string(1 + random() % 3), begin_us, end_us));
        break;
      case 2:
        events.push_back(commit(i, begin_us));
        break;
      default:
        events.push_back(communication(random() % 2, begin_us, end_us));
    }
  }
  std::shuffle(events.begin(), events.end(), random);
  return events;
}

constexpr std::uint32_t seeds = 50;

// When it was and how long, and what it says of itself.
using Shown = std::tuple<std::int64_t, std::int64_t, std::string>;

Shown shown_of_input(json event) {
  const std::int64_t begin_us = event.value("at_us", event.value("begin_us", std::int64_t{}));
  const std::int64_t end_us = event.value("at_us", event.value("end_us", std::int64_t{}));
  for (const char* name : {"at_us", "begin_us", "end_us", "kind", "peer"}) event.erase(name);
  return {begin_us, end_us - begin_us, event.dump()};
}

TEST(Timeline, WritesEveryEventOnceWithItsTimesAndDetails) {
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    const json events = random_events(seed);
    std::multiset<Shown> expected, written;
    for (const json& event : events) expected.insert(shown_of_input(event));
    const json file = trace_events(timeline_of({recording("a", events)}, 1000));
    for (const json& event : file.at("traceEvents"))
      if (event.at("ph") != "M" && event.at("name") != "idle")
        written.insert({event.at("ts"), event.value("dur", 0), event.at("args").dump()});
    EXPECT_EQ(written, expected) << seed;
  }
}

TEST(Timeline, EachKindHasItsTrack) {
  const Timeline timeline = timeline_of(
      {recording("a", {iteration(0, 0), communication(0, 10, 20), communication(1, 15, 25), capture(0, 3, 20, 30),
                       chunk("node1", 30, 40), chunk("node2", 31, 41), commit(3, 45), iteration(0, 50)})},
      1);
  ASSERT_EQ(timeline.nodes.size(), 1u);
  EXPECT_THAT(
      track_names(timeline.nodes[0]),
      ElementsAre("rank 0: iterations", "rank 0: communication", "rank 0: idle spans", "rank 0: capture",
                  "rank 1: communication", "rank 1: idle spans", "chunks to node1", "chunks to node2", "commits"));
  EXPECT_THAT(extents(timeline.nodes[0], "chunks to node2"), ElementsAre(Extent{31, 41}));
  EXPECT_THAT(extents(timeline.nodes[0], "commits"), ElementsAre(Extent{45, 45}));
}

TEST(Timeline, CopyThreadsAreShownBelowTheBubblesOfTheirRank) {
  const json events = {iteration(0, 0),
                       {{"kind", "bubble"}, {"rank", 0u}, {"begin_us", 100}, {"end_us", 300}},
                       {{"kind", "copy"}, {"rank", 0u}, {"begin_us", 110}, {"end_us", 290}},
                       iteration(0, 1000)};
  const Timeline timeline = timeline_of({recording("n0", events)}, 3);
  ASSERT_EQ(timeline.nodes.size(), 1u);
  EXPECT_EQ(track_names(timeline.nodes[0]),
            (std::vector<std::string>{"rank 0: iterations", "rank 0: bubbles", "rank 0: copying"}));
  EXPECT_EQ(extents(timeline.nodes[0], "rank 0: bubbles"), (std::vector<Extent>{{100, 300}}));
  EXPECT_EQ(extents(timeline.nodes[0], "rank 0: copying"), (std::vector<Extent>{{110, 290}}));
}

TEST(Timeline, ShowsIdleSpansBetweenCommunications) {
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    const Timeline timeline = timeline_of({recording("a", random_events(seed))}, 4);
    for (const std::string rank : {"rank 0", "rank 1"}) {
      std::vector<int> busy(10'100), idle(10'100);
      for (const Extent& extent : extents(timeline.nodes[0], rank + ": communication"))
        for (std::int64_t us = extent.begin_us; us < extent.end_us; ++us) busy[us] = 1;
      for (const Extent& extent : extents(timeline.nodes[0], rank + ": idle spans")) {
        EXPECT_LT(extent.begin_us, extent.end_us);
        EXPECT_EQ(extent.begin_us / 1000, (extent.end_us - 1) / 1000) << "of one iteration";
        for (std::int64_t us = extent.begin_us; us < extent.end_us; ++us) ++idle[us];
      }
      for (std::int64_t us = 0; us < 10'100; ++us) {
        const bool is_shown = us >= 6000 && us < 10'000;
        EXPECT_EQ(idle[us], is_shown && busy[us] == 0 ? 1 : 0) << us << " of seed " << seed;
      }
    }
  }
}

TEST(Timeline, GapsAreTheShownTimeWithoutBusySpans) {
  EXPECT_THAT(gaps({10, 100}, {}), ElementsAre(Extent{10, 100}));
  EXPECT_THAT(gaps({10, 100}, {{30, 50}, {0, 20}, {35, 40}, {70, 80}}),
              ElementsAre(Extent{20, 30}, Extent{50, 70}, Extent{80, 100}));
  EXPECT_THAT(gaps({10, 100}, {{0, 20}, {90, 200}, {150, 160}}), ElementsAre(Extent{20, 90}));
  EXPECT_THAT(gaps({10, 100}, {{0, 200}}), ElementsAre());
}

TEST(Timeline, ARankWithoutHooksHasNoIdleSpans) {
  const Timeline timeline =
      timeline_of({recording("a", {iteration(0, 0), capture(0, 1, 10, 20), iteration(0, 100)})}, 3);
  EXPECT_THAT(track_names(timeline.nodes[0]), ElementsAre("rank 0: iterations", "rank 0: capture"));
}

TEST(Timeline, ShowsOnlyTheLastWholeIterations) {
  json events = json::array();
  for (std::int64_t k = 0; k < 8; ++k) {
    events.push_back(iteration(0, 100 * k));
    events.push_back(communication(0, 100 * k + 10, 100 * k + 60));
    events.push_back(commit(k, 100 * k + 70));
    events.push_back(chunk("b", 100 * k + 80, 100 * k + 120));  // into the next one
  }
  const Timeline timeline = timeline_of({recording("a", events)}, 2);
  EXPECT_EQ(timeline.iterations, 2u);
  EXPECT_EQ(timeline.nodes[0].shown, (Extent{500, 700}));
  EXPECT_THAT(extents(timeline.nodes[0], "rank 0: communication"), ElementsAre(Extent{510, 560}, Extent{610, 660}));
  EXPECT_THAT(extents(timeline.nodes[0], "commits"), ElementsAre(Extent{570, 570}, Extent{670, 670}));
  EXPECT_THAT(extents(timeline.nodes[0], "chunks to b"),
              ElementsAre(Extent{480, 520}, Extent{580, 620}, Extent{680, 720}));
  EXPECT_EQ(timeline_of({recording("a", events)}, 100).iterations, 7u);
}

TEST(Timeline, ShowsEverythingWithoutAWholeIteration) {
  const Timeline timeline =
      timeline_of({recording("a", {communication(0, 10, 20), iteration(0, 30), communication(0, 40, 50)})}, 3);
  EXPECT_EQ(timeline.iterations, 0u);
  EXPECT_EQ(timeline.nodes[0].shown, (Extent{10, 50}));
  EXPECT_THAT(extents(timeline.nodes[0], "rank 0: idle spans"), ElementsAre(Extent{20, 30}, Extent{30, 40}));
}

TEST(Timeline, ShowsTheSameTimeSpanForAllNodesOfAJob) {
  const json of_a = {iteration(0, 100), iteration(0, 200), communication(0, 210, 220), iteration(0, 300)};
  json of_b = {iteration(1, 101), iteration(1, 201), communication(1, 215, 225), iteration(1, 301)};
  of_b.push_back(communication(1, 310, 320));
  of_b.push_back(iteration(1, 401));  // after node a was asked
  const Timeline timeline = timeline_of({recording("a", of_a, 350), recording("b", of_b, 450)}, 1);
  ASSERT_EQ(timeline.nodes.size(), 2u);
  for (const NodeTimeline& node : timeline.nodes) EXPECT_EQ(node.shown, (Extent{201, 301}));
  EXPECT_THAT(extents(timeline.nodes[1], "rank 1: communication"), ElementsAre(Extent{215, 225}));
}

TEST(Timeline, ShowsTheNewestIterationsAlthoughARankIsGone) {
  const json events = {iteration(0, 100),  iteration(0, 200),  communication(1, 5010, 5020),
                       iteration(1, 5000), iteration(1, 5100), communication(0, 110, 120)};
  const Timeline timeline = timeline_of({recording("a", events)}, 3);
  EXPECT_EQ(timeline.nodes[0].shown, (Extent{5000, 5100}));
  EXPECT_THAT(track_names(timeline.nodes[0]),
              ElementsAre("rank 1: iterations", "rank 1: communication", "rank 1: idle spans"));
}

TEST(Timeline, EachJobHasItsOwnTimeSpan) {
  Recording other = recording("a", {iteration(0, 7000), capture(0, 1, 7010, 7020), iteration(0, 7100)});
  other.job = "other";
  const Timeline timeline =
      timeline_of({recording("a", {iteration(0, 0), capture(0, 1, 10, 20), iteration(0, 100)}), other}, 3);
  ASSERT_EQ(timeline.nodes.size(), 2u);
  EXPECT_EQ(timeline.nodes[0].shown, (Extent{0, 100}));
  EXPECT_EQ(timeline.nodes[1].shown, (Extent{7000, 7100}));
}

TEST(Timeline, OverlappingMarksGetTheirOwnThreads) {
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    const json file = trace_events(timeline_of({recording("a", random_events(seed))}, 1000));
    std::map<int, std::vector<Extent>> threads;
    for (const json& event : file.at("traceEvents"))
      if (event.at("ph") == "X")
        threads[event.at("tid")].push_back(
            {event.at("ts"), event.at("ts").get<std::int64_t>() + event.at("dur").get<std::int64_t>()});
    for (auto& [tid, boxes] : threads)
      for (std::size_t i = 0; i + 1 < boxes.size(); ++i) EXPECT_LE(boxes[i].end_us, boxes[i + 1].begin_us) << seed;
  }
}

TEST(Timeline, NamesExactlyTheUsedProcessesAndThreads) {
  json file = trace_events(timeline_of({recording("a", random_events(1)), recording("b", random_events(2))}, 5));
  file = json::parse(file.dump());
  std::map<std::string, std::multiset<std::pair<int, int>>> named;
  std::set<std::pair<int, int>> used;
  std::set<int> processes, threads;
  for (const json& event : file.at("traceEvents")) {
    const std::pair of(event.at("pid").get<int>(), event.value("tid", 0));
    if (event.at("ph") == "M") {
      named[event.at("name")].insert(of);
    } else {
      used.insert(of);
      processes.insert(of.first);
      threads.insert(of.second);
      EXPECT_THAT(event.at("ph"), ::testing::AnyOf("X", "i"));
      EXPECT_EQ(event.contains("dur"), event.at("ph") == "X");
    }
  }
  EXPECT_EQ(processes.size(), 2u);
  EXPECT_EQ(threads.size(), used.size()) << "a thread is of one process";
  const std::multiset<std::pair<int, int>> all_threads(used.begin(), used.end());
  EXPECT_EQ(named.at("thread_name"), all_threads);
  EXPECT_EQ(named.at("thread_sort_index"), all_threads);
  EXPECT_THAT(named.at("process_name"), UnorderedElementsAre(std::pair(1, 0), std::pair(2, 0)));
  EXPECT_EQ(named.at("process_sort_index"), named.at("process_name"));
}

TEST(Timeline, SkipsAndCountsMalformedEvents) {
  const json malformed = {json(7),
                          json::object(),
                          {{"kind", 3}},
                          communication(0, 20, 10),  // ends before it begins
                          {{"kind", "communication"}, {"rank", -2}, {"begin_us", 1}, {"end_us", 2}},   //
                          {{"kind", "communication"}, {"rank", 0}, {"begin_us", "1"}, {"end_us", 2}},  //
                          {{"kind", "communication"}, {"rank", 0}, {"begin_us", 1.5}, {"end_us", 2}},  //
                          {{"kind", "communication"}, {"rank", 0}, {"begin_us", 1}},                   //
                          {{"kind", "communication"}, {"begin_us", 1}, {"end_us", 2}},                 //
                          {{"kind", "iteration"}, {"rank", 0}, {"at_us", -5}},                         //
                          {{"kind", "commit"}, {"at_us", std::uint64_t{1} << 63}},                     //
                          {{"kind", "chunk"}, {"peer", "no name!"}, {"begin_us", 1}, {"end_us", 2}},   //
                          {{"kind", "chunk"}, {"peer", {{"x", 1}}}, {"begin_us", 1}, {"end_us", 2}},   //
                          {{"kind", "capture"}, {"rank", nullptr}, {"begin_us", 1}, {"end_us", 2}}};
  json events = malformed;
  events.push_back({{"kind", "of the future"}, {"rank", "?"}});
  EXPECT_TRUE(timeline_of({recording("a", events)}, 3).nodes.empty());
  events.push_back(communication(0, 10, 20));
  const Timeline timeline = timeline_of({recording("a", events)}, 3);
  EXPECT_EQ(timeline.malformed, malformed.size());
  EXPECT_THAT(track_names(timeline.nodes[0]), ElementsAre("rank 0: communication"));
}

TEST(Timeline, CountsAnInvalidRecordingAsMalformed) {
  for (const json& trace : {json(), json::array(), json{{"events", 3}}, json::object()}) {
    const Timeline timeline = timeline_of({{"job", "a", trace}}, 3);
    EXPECT_TRUE(timeline.nodes.empty());
    EXPECT_EQ(timeline.malformed, 1u);
  }
}

}  // namespace
}  // namespace ckpt::cli
