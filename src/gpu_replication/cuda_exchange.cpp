#include "gpu_replication/cuda_exchange.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "device/cuda_copy.hpp"
#include "gpu_replication/parity_place.hpp"

namespace ckpt::device {
namespace {

// What the members exchange when they meet. NCCL sends less than this without the adapter reading the memory itself.
constexpr std::uint64_t greeting_max_bytes = 32u << 10;

}  // namespace

CudaExchange::CudaExchange(std::shared_ptr<NcclComm> comm, const Settings& settings)
    : member_(static_cast<std::uint32_t>(comm->rank())),
      settings_(settings),
      memory_(std::max(settings.reserved_bytes, 1 + static_cast<std::uint64_t>(comm->ranks()))),
      comm_(std::move(comm)) {
  if (settings.makes_parity) kernels_.emplace();
}

CudaExchange::~CudaExchange() { comm_->abort(); }

bool CudaExchange::meet() {
  if (met_) return true;
  if (!has_greeted_) {
    if (!comm_->ready()) return false;
    comm_->use_memory(memory_.pointer(), memory_.size_bytes());
    greet();
    return false;
  }
  return met_ = has_crossed(greeted_);
}

// A member without others greets itself.
void CudaExchange::greet() {
  using Kind = NcclComm::Transfer::Kind;
  const auto places = static_cast<std::uint64_t>(comm_->ranks()) + 1;
  const std::uint64_t size_bytes = std::min(memory_.size_bytes() / places, greeting_max_bytes);
  const auto place_of = [&](int number) { return memory_.pointer() + static_cast<CUdeviceptr>(number) * size_bytes; };
  std::vector<NcclComm::Transfer> greetings;
  for (int peer = 0; peer < comm_->ranks(); ++peer)
    if (peer != comm_->rank() || comm_->ranks() == 1)
      for (const Kind kind : {Kind::send, Kind::receive})
        greetings.push_back({kind, peer, place_of(kind == Kind::send ? 0 : 1 + peer), size_bytes});
  issue(greetings);
  has_greeted_ = true;
}

void CudaExchange::make_stages() {
  stages_.clear();
  const std::size_t chunks = plan_->parity() == nullptr ? 1 : plan_->places();
  for (std::uint64_t i = 0; i < plan_->buffers(); ++i)
    stages_.push_back({memory_.pointer() + i * plan_->step_bytes(), std::vector<Event>(chunks), Event(), Event()});
}

void CudaExchange::begin(schedule::ExchangePlan plan, Fill fill, std::vector<std::byte*> to) {
  const std::uint64_t needed_bytes = plan.step_bytes() * plan.buffers();
  if (needed_bytes > memory_.size_bytes())
    throw Failure(CKPT_ERR_INTERNAL, "GPU replication needs " + size_text(needed_bytes) +
                                         " of GPU memory for its chunks, but reserved only " +
                                         size_text(memory_.size_bytes()) +
                                         ": this is a bug in ckptengine; report it with the agent's log");
  plan_ = std::move(plan);
  fill_ = std::move(fill);
  to_ = std::move(to);
  allowed_ = filling_ = filled_ = issued_ = crossed_ = received_ = 0;
  last_ = plan_->steps();
  filling_chunk_ = 0;
  filling_result_ = Filling::begun;
  make_stages();
}

void CudaExchange::allow(std::uint64_t steps) {
  const std::uint64_t allowed = std::clamp(steps, allowed_, last_);
  if (allowed == allowed_) return;
  if (received_ == allowed_) deadline_ = Deadline::in_ms(settings_.step_timeout_ms);
  allowed_ = allowed;
}

void CudaExchange::finish() {
  if (last_ == allowed_) return;
  last_ = allowed_;
  deadline_ = Deadline::in_ms(settings_.step_timeout_ms);
}

// Waits also for chunks that are still being copied to sub-buffers and will not be issued.
bool CudaExchange::over() const {
  return received_ == last_ && filled_ == filling_ && (filling_chunk_ == 0 || is_filled(filling_));
}

bool CudaExchange::rests() const {
  return received_ == allowed_ && filled_ == filling_ && (!may_fill() || awaits_bytes());
}

// Chunks are copied to every free stage, allowed or not. So they wait in the sub-buffers until their step is allowed.
bool CudaExchange::may_fill() const {
  return filling_result_ != Filling::never && filling_ < std::min(last_, received_ + plan_->buffers());
}

// With parity each other member gets another chunk. Otherwise all get the same.
std::vector<schedule::ExchangeTransfer> CudaExchange::sent_chunks(std::uint64_t step) const {
  std::vector<schedule::ExchangeTransfer> chunks;
  for (const auto& transfer : plan_->step(member_, step)) {
    if (!transfer.is_send || transfer.size_bytes == 0) continue;
    chunks.push_back(transfer);
    if (plan_->parity() == nullptr) break;
  }
  return chunks;
}

// An event that was not recorded for this step was reached in an earlier one.
bool CudaExchange::is_filled(std::uint64_t step) const {
  const std::vector<Event>& filled = stage(step).filled;
  return std::all_of(filled.begin(), filled.end(), [](const Event& each) { return each.reached(); });
}

void CudaExchange::fill() {
  while (filled_ < filling_ && is_filled(filled_)) ++filled_;
  if (!may_fill()) return;
  const auto chunks = sent_chunks(filling_);
  for (; filling_chunk_ < chunks.size(); ++filling_chunk_) {
    const auto& chunk = chunks[filling_chunk_];
    const Event& filled = stage(filling_).filled[filling_chunk_];
    filling_result_ = fill_({chunk.first_byte, chunk.size_bytes, place(filling_, chunk.place), filled}, fill_stream_);
    if (filling_result_ != Filling::begun) return;
  }
  filling_chunk_ = 0;
  ++filling_;
}

void CudaExchange::issue(std::span<const NcclComm::Transfer> group) {
  comm_->exchange(group, cross_stream_);
  on_stream_ = false;
}

void CudaExchange::issue_step() {
  const bool may_begin = issued_ == crossed_ && issued_ < std::min(filled_, allowed_);
  if (!may_begin || !comm_->ready()) return;
  std::vector<NcclComm::Transfer> transfers;
  for (const auto& transfer : plan_->step(member_, issued_))
    transfers.push_back({transfer.is_send ? NcclComm::Transfer::Kind::send : NcclComm::Transfer::Kind::receive,
                         static_cast<int>(transfer.peer), place(issued_, transfer.place), transfer.crossing_bytes()});
  issue(transfers);
  ++issued_;
}

// Whether the last issued group is done; `end` is recorded after it. Checks for errors before and after: a group that
// another thread aborted is also done.
bool CudaExchange::has_crossed(const Event& end) {
  if (!comm_->ready()) return false;
  if (!std::exchange(on_stream_, true)) end.record(cross_stream_);
  return end.reached() && comm_->ready();
}

void CudaExchange::cross() {
  if (issued_ == crossed_ || !has_crossed(stage(crossed_).crossed)) return;
  copy_out();
  ++crossed_;
}

// Makes the parity in the first place, whose chunk has been sent. The digests come after all places.
void CudaExchange::encode(const schedule::EncodingStep& made) {
  constexpr std::uint64_t leaf_bytes = kernels::leaf_size_bytes;
  if (made.size_bytes == 0 || to_[member_] == nullptr) return;
  const CUdeviceptr parity = place(crossed_, 0), digests = place(crossed_, plan_->places());
  kernels::device::EncodeJob job{};
  for (const auto& source : made.sources) {
    const std::uint32_t column = job.source_count++;
    job.sources[column] = {reinterpret_cast<const unsigned char*>(place(crossed_, source.place)), source.size_bytes};
    job.coefficients[column] = kernels::ErasureCode::coefficient(made.row, column);
  }
  job.parity = reinterpret_cast<unsigned char*>(parity);
  job.digests = reinterpret_cast<std::uint64_t*>(digests);
  const std::uint64_t leaves = made.size_bytes / leaf_bytes;
  kernels_->encode(job, leaves, copy_stream_);
  const schedule::ParityPlace to(*plan_->parity(), member_);
  const std::uint64_t first = to.digests_at(made.first_byte / leaf_bytes);
  copy_to_host(to_[member_] + made.first_byte, parity, made.size_bytes, copy_stream_);
  copy_to_host(to_[member_] + first, digests, to.digests_at(made.first_byte / leaf_bytes + leaves) - first,
               copy_stream_);
}

void CudaExchange::copy_out() {
  if (plan_->parity() != nullptr) {
    encode(plan_->encoding(member_, crossed_));
    return stage(crossed_).received.record(copy_stream_);
  }
  for (const auto& transfer : plan_->step(member_, crossed_))
    if (!transfer.is_send && transfer.size_bytes != 0 && to_[transfer.peer] != nullptr)
      copy_to_host(to_[transfer.peer] + transfer.first_byte, place(crossed_, transfer.place), transfer.size_bytes,
                   copy_stream_);
  stage(crossed_).received.record(copy_stream_);
}

void CudaExchange::land() {
  while (received_ < crossed_ && stage(received_).received.reached()) ++received_;
}

void CudaExchange::advance() {
  if (over()) return;
  const std::uint64_t before = progress();
  land();
  cross();
  fill();
  issue_step();
  if (progress() != before)
    deadline_ = Deadline::in_ms(settings_.step_timeout_ms);
  else if ((received_ < allowed_ || allowed_ == last_) && deadline_.passed())
    throw Failure(CKPT_ERR_TIMEOUT,
                  "a chunk on its way from GPU to GPU made no progress for " +
                      std::to_string(settings_.step_timeout_ms) +
                      " ms; check whether a rank of the replication group has ended or hangs (ckptctl status)");
}

// NCCL reads and writes only sub-buffers, and so do copies on streams of the capture.
CudaDrain CudaExchange::give_up() {
  plan_.reset();
  filling_chunk_ = 0;
  last_ = allowed_ = filling_ = filled_ = issued_ = crossed_ = received_ = 0;
  return CudaDrain({fill_stream_, copy_stream_});
}

}  // namespace ckpt::device
