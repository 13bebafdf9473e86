// Runs that failed once, by what they showed.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "sim/world.hpp"

namespace ckpt::sim {
namespace {

// They were found before agents watched ranks. With the watch, a seed is another run.
std::string violation_in(Settings settings) {
  settings.watches = false;
  const auto violation = World(settings, nullptr).run().violation;
  return violation ? violation->invariant + ": " + violation->text : "";
}

// With the harder faults and with the watch, found before a suspicion could halt the job.
std::string watched_violation_of(std::uint64_t seed) {
  Settings settings = draw_settings(seed);
  settings.halts = settings.core.halts = false;
  settings.core.capture_every = 1;
  const auto violation = World(settings, nullptr).run().violation;
  return violation ? violation->invariant + ": " + violation->text : "";
}

// The same, as it was left by --shrink, and with halts.
std::string watched_violation_of(std::uint64_t seed, const std::set<std::size_t>& faults, std::uint64_t shake) {
  Settings settings = draw_settings(seed);
  settings.only_faults = faults;
  settings.shake = shake;
  const auto violation = World(settings, nullptr).run().violation;
  return violation ? violation->invariant + ": " + violation->text : "";
}

// Found before there were the harder faults.
std::string violation_of(std::uint64_t seed) {
  Settings settings = draw_settings(seed);
  settings.is_hard = false;
  return violation_in(settings);
}

// With the harder faults.
std::string hard_violation_of(std::uint64_t seed) { return violation_in(draw_settings(seed)); }

// As they were left by --shrink.
std::string violation_of(std::uint64_t seed, const std::set<std::size_t>& faults, std::uint64_t shake) {
  Settings settings = draw_settings(seed);
  settings.only_faults = faults;
  settings.shake = shake;
  return violation_in(settings);
}

// A node that was away kept a commit that all others have dropped since; then they are lost, and parity gives back more
// of it than counting the members that lack something tells. The checker took it for a checkpoint that was never whole.
TEST(Seeds, RestoresADroppedCommitFromTheOnlyAbsentNode) { EXPECT_EQ(violation_of(300'911), ""); }

// A node that becomes leader hears what it said itself before, brought by the relay that it had. The checker took it
// for a report of an older epoch that counts.
TEST(Seeds, NewLeaderToleratesItsOwnOldReportThroughARelay) { EXPECT_EQ(violation_of(879), ""); }

// All machines were lost, and storage alone knew what was committed last. The incarnation after the next one restored
// something newer that had not all its copies yet, and dropped that commit.
TEST(Seeds, KeepsACommitKnownOnlyToStorageUntilANewerOneIsComplete) { EXPECT_EQ(violation_of(1887), ""); }

// A leader was lost with the only other node that had heard of its last commit; the next incarnation went on from that
// checkpoint without knowing what it was. It was lost in turn, and the incarnation after that restored the commit
// before without a word.
TEST(Seeds, TreatsAnIncarnationsBaseAsAPossibleCommit) { EXPECT_EQ(violation_of(12'857), ""); }

// A leader had two pieces before it that disagreed, and said nothing while a third node was away; then it was lost,
// with one of them. The checker asked for more than the comparison of what is left, too.
TEST(Seeds, CountsADisagreementWhileANodeIsAway) { EXPECT_EQ(violation_of(14'302), ""); }

// A new leader that had heard only some nodes ordered the parity of one checkpoint before that of an older one, of
// which it had yet to hear a shard. The older one then found no slot, and nothing was committed any more.
TEST(Seeds, NewLeaderOrdersOlderCheckpointsFirst) { EXPECT_EQ(violation_of(21'562), ""); }

// Ranks disagreed, and all that was left of the bytes of one was the parity that was made of them. It could be no
// parity of what was restored, and nothing was committed any more.
TEST(Seeds, ParityRevealsThatRanksDisagreed) { EXPECT_EQ(violation_of(27'797), ""); }

// A leader that had no rank, and that nobody heard any more, committed a checkpoint. The next leader went on from a
// newer one, and dropped that commit for an older one before the newer one had all its copies.
TEST(Seeds, KeepsCompleteCheckpointWhenCommitMessageWasLost) { EXPECT_EQ(violation_of(5099), ""); }

// An incarnation went on behind a commit, the next one restored what that had captured, and died at once; the one after
// that took the commit which they had gone behind for one to keep.
TEST(Seeds, AbandonedCommitDoesNotReturn) { EXPECT_EQ(violation_of(74'385), ""); }

// Snapshots that were discarded now and then put the next iteration that all take 64 iterations off, each time, and
// iterations were slow.
TEST(Seeds, SkipsFewSlowIterationsAtATime) { EXPECT_EQ(violation_of(89'574), ""); }

// All agents were stopped while a restore was being decided. The leader that came to itself counted nobody as present,
// and everybody as answered: it decided that the state was lost, which was all there.
TEST(Seeds, PausingAllAgentsDuringADecisionLosesNothing) { EXPECT_EQ(violation_of(551, {3, 9}, 2), ""); }

// Likewise, of a job that had committed nothing yet: a newer commit was not excluded although all who could know lived.
TEST(Seeds, PausingAllAgentsDoesNotCauseDoubtAboutCommits) { EXPECT_EQ(violation_of(42, {1, 2}, 0), ""); }

// The leader's record was lost, and a new leader's record, of a lower revision, was believed only after a lease.
// Meanwhile a node that lived was told as lost.
TEST(Seeds, TrustsANewLeadersRecordOfAnyRevision) { EXPECT_EQ(hard_violation_of(382), ""); }

// The incarnation's record was an older one again, and who led by the newer one was lost. The next leader waited for
// rank assignments that had been removed, for ever.
TEST(Seeds, BeginsANewIncarnationIfAssignmentsAreLost) {
  EXPECT_EQ(hard_violation_of(275), "");
  EXPECT_EQ(hard_violation_of(610), "");
}

// Likewise, and the ranks of the newer incarnation went on without a commit.
TEST(Seeds, SupersedesRanksOfAnUnrecordedIncarnation) { EXPECT_EQ(hard_violation_of(1244), ""); }

// The record was of an incarnation before it was decided, which all ranks already served.
TEST(Seeds, DoesNotWaitForAnIncarnationDecidedBeforeItsRecordReverted) { EXPECT_EQ(hard_violation_of(1504), ""); }

// Likewise, after which it got its number, and a decision, for a second time.
TEST(Seeds, DecidesAnIncarnationOnlyOnce) { EXPECT_EQ(hard_violation_of(1718), ""); }

// The record of the first commit was set back; the last node that knew told a leader of it, and was lost.
TEST(Seeds, RecordsACommitAgainBeforeItsWitnessesAreLost) { EXPECT_EQ(hard_violation_of(779), ""); }

// A new leader that heard the last member gave up 20 checkpoints at once, and put the next iteration 64 further off.
TEST(Seeds, AbandoningSeveralCheckpointsDelaysTheNextIterationOnce) {
  EXPECT_EQ(hard_violation_of(350), "");
  EXPECT_EQ(hard_violation_of(533), "");
}

// All nodes turned from a leader to the next within 700 ms, of which the store did not tell it. It called the first of
// them lost while the last one seemed to follow it.
TEST(Seeds, ReplacedLeaderDoesNotDeclareEarlyLeaversLost) { EXPECT_EQ(hard_violation_of(1054), ""); }

// The incarnation's record was lost together with the leader and all members. A spare node had read in it that state
// was committed, and did not say so: the job started anew without a word.
TEST(Seeds, SpareNodeReportsACommitThatItOnlyRead) { EXPECT_EQ(hard_violation_of(5764), ""); }

// The incarnation's record was lost together with every machine. Storage knew of an older incarnation only, so the next
// one got a number for the second time. Nobody could have known.
TEST(Seeds, ForgetsAnIncarnationWithoutAnyTrace) { EXPECT_EQ(hard_violation_of(6769), ""); }

// Messages were lost. Ranks that were told late took iterations before the named one, and each of these put it off: it
// lay 64 iterations ahead within a second.
TEST(Seeds, EarlierSkipsDoNotDelayTheNamedIteration) { EXPECT_EQ(hard_violation_of(5843), ""); }

// A leader's renewals did not arrive at the store for a while, and it gave orders all the time. The next one, which had
// them until then, called it lost before it could report.
TEST(Seeds, FormerLeaderThatJustGaveOrdersIsNotLost) { EXPECT_EQ(hard_violation_of(5431), ""); }

// A leader that stands by was restarted, and waited for two leases before it would lead again. The leader's record
// named it, so it reported to nobody, and the first of its reports to the next leader was lost.
TEST(Seeds, RestartedLeaderIsNotDeclaredLost) {
  EXPECT_EQ(hard_violation_of(4199), "");
  EXPECT_EQ(hard_violation_of(5155), "");
}

// The store set the leader's record back, and the nodes elected another leader. The store then reached the former
// leader's revision a second time, so that leader could renew its lease. It soon heard of the newer leader. It did
// nothing until then.
TEST(Seeds, FormerLeaderMayRenewItsLeaseUntilItHearsOfTheNext) {
  EXPECT_EQ(hard_violation_of(5615), "");
  EXPECT_EQ(hard_violation_of(6734), "");
}

// The store forgot an election a moment after it, and two leaders led with one epoch.
TEST(Seeds, TwoLeadersNeverShareAnEpoch) {
  EXPECT_EQ(hard_violation_of(106), "");
  EXPECT_EQ(hard_violation_of(429), "");
}

// The record of the leader was set back, and a request to be elected arrived that was sent while nobody could know of
// the newer leader.
TEST(Seeds, ToleratesALateButOnceCorrectRequest) { EXPECT_EQ(hard_violation_of(2174), ""); }

// A leader was replaced while the store did not answer it. A report that was held up for two seconds seemed to follow
// it, and it called those lost that had turned to the other one first.
TEST(Seeds, LateReportDoesNotMakeAReplacedLeaderFollowed) { EXPECT_EQ(hard_violation_of(2121), ""); }

// Copying took a whole iteration, and an iteration more than half of the time after which the leader takes everybody
// for informed. It named the very next iteration again and again, and some ranks were still busy then.
TEST(Seeds, RanksAgreeAlthoughCopyingTakesAWholeIteration) { EXPECT_EQ(violation_of(2121, {1, 7, 9}, 1), ""); }

// Nodes that were frozen for ten seconds found a directive that told of a commit, and took it for one of now.
TEST(Seeds, FrozenNodeDoesNotTreatOldDirectivesAsNew) {
  EXPECT_EQ(hard_violation_of(3069), "");
  EXPECT_EQ(hard_violation_of(5562), "");
  EXPECT_EQ(violation_of(6021, {1}, 0), "");
  EXPECT_EQ(hard_violation_of(6687), "");
}

// The store forgot a decision before anybody read it, and who had asked for it was lost. The incarnation was decided
// again, when a rank had moved.
TEST(Seeds, ForgottenUnreadDecisionDoesNotCount) { EXPECT_EQ(hard_violation_of(6853), ""); }

// A leader whose store no longer answered went on by itself. The newer one heard nothing of it, and either called the
// other lost.
TEST(Seeds, NewerLeaderContactsALeaderThatCannotReadTheStore) {
  EXPECT_EQ(hard_violation_of(7475), "");
  EXPECT_EQ(hard_violation_of(8336), "");
}

// A write that was on its way for seconds met its revision for the second time, after the store was set back.
TEST(Seeds, ToleratesALateWriteThatRevertsTheStore) {
  EXPECT_EQ(hard_violation_of(502345), "");
  EXPECT_EQ(hard_violation_of(503812), "");
}

// An incarnation passed over a commit whose nodes were away, and went on from an older one. They came back, and the
// next incarnation restored the newer one. It counted it as a commit, which frees the older one, while one copy was
// missing.
TEST(Seeds, KeepsTheOlderCommitUntilAReturnedOneHasItsCopies) { EXPECT_EQ(hard_violation_of(5226), ""); }

// All clocks jumped right after an election. The leader renewed its term only while nodes followed it, and spoke to
// them only after it had renewed it. After two seconds it spoke, and called the former leader lost a moment later.
TEST(Seeds, NewLeaderSendsImmediatelyAfterAPause) { EXPECT_EQ(violation_of(1455, {1, 2, 3}, 5), ""); }

// For two seconds a node failed to send some of its reports, and the network lost another one.
TEST(Seeds, NodeThatFailsToReportMayBeDeclaredLost) { EXPECT_EQ(hard_violation_of(5017), ""); }

// The store lost a record. The one node that knew of the decision led, and waited for rank assignments that the
// decision had removed. Then its agent was restarted, and the incarnation was decided again.
TEST(Seeds, LeaderThatKnowsADecisionDoesNotWaitForAssignments) { EXPECT_EQ(hard_violation_of(900537), ""); }

// The store lost the incarnation's record. The next leader remembered that incarnation as undecided, wrote that, and
// decided it. But it had been decided, and all who knew were lost.
TEST(Seeds, DoesNotDecideAPossiblyDecidedIncarnationAgain) { EXPECT_EQ(watched_violation_of(900963), ""); }

// The store lost the incarnation's record, and the next leader knew no members. So it took nobody for missing, and the
// job started anew while nodes that it had not heard yet had all of a checkpoint.
TEST(Seeds, WaitsForAllNodesIfMembersAreUnknown) {
  Settings settings = draw_settings(901'462);
  settings.rejoins = false;  // found before ranks rejoined
  const auto violation = World(settings, nullptr).run().violation;
  EXPECT_EQ(violation ? violation->text : "", "");
}

// A rank spun, and another one was stopped for a while. The checker expected the leader to name the first one again at
// the very moment when the other one went on.
TEST(Seeds, NamesASpinningRankAgainAfterAStoppedOneContinues) { EXPECT_EQ(watched_violation_of(900640), ""); }

// All clocks jumped, and one iteration of one rank counted as ten seconds long.
TEST(Seeds, SingleIterationDoesNotMakeARankSlow) { EXPECT_EQ(watched_violation_of(900334), ""); }

// A restart left all ranks behind. All waited in a communication that the model never ended, and the leader said that
// all wait. The checker took only communications for hung that a fault had hung.
TEST(Seeds, RanksLeftBehindByARestartMayAllWait) { EXPECT_EQ(watched_violation_of(781, {19}, 2), ""); }

// A rank died, and so did the process that took its place, before it restored. The checker expected the leader to name
// the rank for its first death, which the new trainer's claim had ended.
TEST(Seeds, DoesNotNameADeadRankOnceAnotherProcessClaimsIt) {
  EXPECT_EQ(watched_violation_of(810, {6, 17, 19, 20, 21}, 0), "");
}

// The seed as it is today, with all faults.
std::string violation_today(std::uint64_t seed) {
  const auto violation = World(draw_settings(seed), nullptr).run().violation;
  return violation ? violation->invariant + ": " + violation->text : "";
}

// One rank took over the shards of two, and ended before its first commit. The next incarnation, of one rank again,
// took the checkpoint for one that all its ranks share, and restored one rank's half of it.
TEST(Seeds, SingleRankRestoresAllShardsThatItTookOver) {
  for (const std::uint64_t seed : {1147u, 5347u}) EXPECT_EQ(violation_today(seed), "") << seed;
}

// Fewer ranks took over what more had committed. The leader then wrote these ranks' shards of it to storage, and called
// the checkpoint whole there.
TEST(Seeds, LargerJobsCheckpointNeedsAllItsShardsOnStorage) { EXPECT_EQ(violation_today(940), ""); }

// Nodes still had what the job had gone back from. The leader asked for as many ranks as had captured that.
TEST(Seeds, AbandonedCheckpointsDoNotHideLostState) { EXPECT_EQ(violation_today(1938), ""); }

// The only other rank was on the node of the last leader, so the halt was over before the suspected rank could answer.
TEST(Seeds, CapturesASuspectedRankBeforeTheNextIncarnation) { EXPECT_EQ(violation_today(2967), ""); }

// A rank died in a halt after its update. All others had been captured at that iteration, and the leader gave it up.
TEST(Seeds, KeepsTheIterationOfAHalt) { EXPECT_EQ(violation_today(2202), ""); }

// A leader that could not reach the store was replaced, and called lost before it heard of that.
TEST(Seeds, FormerLeaderUnheardOnlyByTheStoreIsNotLost) { EXPECT_EQ(violation_today(8193), ""); }

// All ranks were held or captured. The leader named those that waited for the others.
TEST(Seeds, DoesNotBlameRanksOfAHaltedJobForWaiting) {
  for (const std::uint64_t seed : {4249u, 4292u, 7065u}) EXPECT_EQ(violation_today(seed), "") << seed;
}

// The store went back to the record of an earlier incarnation, whose rank assignments were removed. So the leader could
// not know whether what storage has is all that these ranks captured, and rightly asked for as many ranks again.
TEST(Seeds, ResizeFromStorageNeedsTheRecordsOfItsWriters) { EXPECT_EQ(violation_today(9270), ""); }

// One of two ranks that share a shard was corrupted. With parity, each of them captures one part, so nobody saw that
// they disagree. What was restored was neither rank's, and the checker compared it with what one of them had.
TEST(Seeds, AllowsUndetectableCorruptionOfADividedShard) { EXPECT_EQ(watched_violation_of(1195, {14, 15}, 3), ""); }

}  // namespace
}  // namespace ckpt::sim
