// What a trainer and its leader do comes in any order at its node. In each of them the trainer takes part in one
// incarnation of the job: that whose decision it was given last.
#include <gtest/gtest.h>

#include "lone_node.hpp"

namespace ckpt::core::trainer_incarnations {
namespace {

constexpr Rank rank = 0;
constexpr std::uint64_t instance = 50;
const CheckpointId older_commit(1, 5);

// Does what it is told, and looks at what the node says each time.
class Story {
 public:
  explicit Story(std::uint64_t attached_to) : node_(Config{}, stored()), served_(attached_to) {
    node_.follow(lone_leader, 5);
    node_.handle(TrainerHello{rank, instance, attached_to, 1, main_shard(rank), private_shard(rank)});
  }

  // The trainer's next step. False: it cannot take it yet.
  bool step(std::size_t number) {
    const bool is_ready = !node_.all<RestoreReady>().empty();
    if (number == 0) {
      notify(RestoreAsked{rank});
    } else if (number == 1) {
      if (!is_ready) return false;
      notify(RestoreDone{rank});
    } else {
      notify(SegmentsReady{rank, {main_shard(rank), private_shard(rank)}});
    }
    return true;
  }
  // The leader's next word. It takes the trainer for a member each time.
  void word(std::size_t number) {
    Directive directive;
    directive.leader = lone_leader;
    directive.epoch = 5;
    directive.sequence = number + 1;
    directive.incarnation = number < 4 ? 2 : 3;
    directive.decision.verdict = number % 4 == 0 ? Verdict::undecided : Verdict::restore;
    directive.decision.checkpoint = older_commit;
    if (number % 4 >= 1) directive.committed = older_commit;
    if (number % 4 >= 2) directive.resume_at = 9;
    if (number % 4 == 3) directive.committed = CheckpointId(directive.incarnation, 7);
    directive.admitted.push_back({rank, instance, Share{}});
    node_.receive(lone_leader, directive);
    judge();
  }
  std::size_t incarnations_served() const { return node_.all<RestoreReady>().size(); }
  std::size_t commits_told() const { return node_.all<NotifyCommit>().size(); }

 private:
  static Recovered stored() {
    Recovered recovered;
    for (const std::string& shard : {main_shard(rank), private_shard(rank)}) {
      const SlotRef slot{rank, shard, 0};
      recovered.slots.push_back({slot, piece_of(shard, older_commit, 1), true});
    }
    return recovered;
  }
  void notify(const Event& event) {
    if (std::holds_alternative<RestoreAsked>(event)) served_ = 0;
    node_.handle(event);
    judge();
  }
  void judge() {
    const std::uint64_t takes_part_in = node_.status().ranks.at(0).incarnation;
    for (; judged_ < node_.effects.size(); ++judged_) {
      const Effect& effect = node_.effects[judged_];
      if (const auto* ready = std::get_if<RestoreReady>(&effect)) served_ = ready->incarnation;
      if (const auto* news = std::get_if<NotifyCommit>(&effect)) {
        ASSERT_EQ(news->committed.incarnation(), takes_part_in) << "a commit of another incarnation";
      }
    }
    if (served_ == 0) return;
    ASSERT_EQ(takes_part_in, served_) << "an incarnation it was not served in";
  }

  LoneNode node_;
  std::size_t judged_ = 0;  // effects
  std::uint64_t served_;    // incarnation whose decision it has, 0: it waits for one
};

// Calls `call` with every order in which `steps` of one and `words` of another can come: true is a step.
void each_order(std::size_t steps, std::size_t words, const std::function<void(const std::vector<bool>&)>& call) {
  std::vector<bool> order(steps + words, true);
  std::fill(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(words), false);
  do call(order);
  while (std::next_permutation(order.begin(), order.end()));
}

TEST(Trainers, LearnOnlyCommitsOfTheirOwnIncarnation) {
  std::size_t incarnations = 0, commits = 0;
  for (const std::uint64_t attached_to : {0u, 2u}) {
    each_order(3, 8, [&](const std::vector<bool>& order) {
      Story story(attached_to);
      std::size_t steps = 0, words = 0;
      for (const bool is_step : order) {
        if (is_step)
          steps += story.step(steps);
        else
          story.word(words++);
        if (testing::Test::HasFatalFailure()) return;
      }
      incarnations += story.incarnations_served();
      commits += story.commits_told();
    });
  }
  EXPECT_GT(incarnations, 200u);
  EXPECT_GT(commits, 200u);
}

}  // namespace
}  // namespace ckpt::core::trainer_incarnations
