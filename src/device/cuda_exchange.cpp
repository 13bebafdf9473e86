#include "device/cuda_exchange.hpp"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.hpp"

namespace ckpt::device {
namespace {

constexpr std::int64_t abandon_timeout_ms = 10'000;
constexpr auto still_pause = std::chrono::microseconds(100);

// What NCCL has not let go of: freeing it would wait for that.
template <class Kept>
void keep(std::unique_ptr<Kept> kept) {
  static std::mutex mutex;
  static auto* const all = new std::vector<std::unique_ptr<Kept>>;
  const std::lock_guard lock(mutex);
  all->push_back(std::move(kept));
}

}  // namespace

CudaExchange::CudaExchange(std::unique_ptr<NcclComm> comm, const Settings& settings)
    : member_(static_cast<std::uint32_t>(comm->rank())),
      settings_(settings),
      resources_(std::make_unique<Resources>()) {
  const std::uint64_t greeting_bytes = 1 + static_cast<std::uint64_t>(comm->ranks());
  resources_->comm = std::move(comm);
  resources_->memory = DeviceMemory(std::max(settings.reserved_bytes, greeting_bytes));
}

CudaExchange::~CudaExchange() {
  if (landed_ != issued_) abandon(Deadline::in_ms(abandon_timeout_ms));
  if (!may_free_) keep(std::move(resources_));
}

bool CudaExchange::meet() {
  if (met_) return true;
  if (!has_greeted_) {
    if (comm().ready()) greet();
    return false;
  }
  return met_ = has_crossed(resources_->greeted);
}

// One that is alone greets itself.
void CudaExchange::greet() {
  using Kind = NcclComm::Transfer::Kind;
  const CUdeviceptr bytes = resources_->memory.pointer();
  std::vector<NcclComm::Transfer> greetings;
  for (int peer = 0; peer < comm().ranks(); ++peer)
    if (peer != comm().rank() || comm().ranks() == 1)
      for (const Kind kind : {Kind::send, Kind::receive})
        greetings.push_back({kind, peer, kind == Kind::send ? bytes : bytes + 1 + static_cast<CUdeviceptr>(peer), 1});
  issue(greetings);
  has_greeted_ = true;
}

// The own chunk has the first one.
CUdeviceptr CudaExchange::place(std::uint64_t step, const schedule::ExchangeTransfer& transfer) const {
  const std::uint32_t of_peer = std::max(transfer.peer + (transfer.peer < member_ ? 1 : 0), 1u);
  return stage(step).data + (transfer.is_send ? 0 : of_peer * plan_->chunk_bytes());
}

void CudaExchange::make_stages() {
  auto& stages = resources_->stages;
  stages.clear();
  const std::uint64_t stage_bytes = plan_->chunk_bytes() * plan_->places();
  for (std::uint64_t i = 0; i < plan_->buffers(); ++i)
    stages.push_back({resources_->memory.pointer() + i * stage_bytes, Event(), Event(), Event()});
}

void CudaExchange::begin(schedule::ExchangePlan plan, Fill fill, std::vector<std::byte*> to) {
  const std::uint64_t needed_bytes = plan.chunk_bytes() * plan.places() * plan.buffers();
  if (needed_bytes > resources_->memory.size_bytes())
    throw Failure(CKPT_ERR_INTERNAL, "a plan was made for more device memory than there is");
  plan_ = std::move(plan);
  fill_ = std::move(fill);
  to_ = std::move(to);
  allowed_ = filled_ = issued_ = crossed_ = landed_ = 0;
  make_stages();
}

void CudaExchange::allow(std::uint64_t steps) {
  if (landed_ == allowed_) deadline_ = Deadline::in_ms(settings_.step_timeout_ms);
  allowed_ = std::clamp(steps, allowed_, this->steps());
}

// Into every stage that is free, allowed or not: the own piece waits in the sub-buffers.
void CudaExchange::fill() {
  for (; filled_ < steps() && filled_ < landed_ + plan_->buffers(); ++filled_) {
    for (const auto& transfer : plan_->step(member_, filled_)) {
      if (!transfer.is_send) continue;
      fill_(transfer.first_byte, transfer.size_bytes, place(filled_, transfer), resources_->fill_stream);
      break;  // the same chunk for all
    }
    stage(filled_).filled.record(resources_->fill_stream);
  }
}

void CudaExchange::issue(std::span<const NcclComm::Transfer> group) {
  comm().exchange(group, resources_->cross_stream);
  on_stream_ = false;
}

void CudaExchange::issue_step() {
  const bool may_begin = issued_ == crossed_ && issued_ < std::min(filled_, allowed_);
  if (!may_begin || !stage(issued_).filled.reached() || !comm().ready()) return;
  std::vector<NcclComm::Transfer> transfers;
  for (const auto& transfer : plan_->step(member_, issued_))
    transfers.push_back({transfer.is_send ? NcclComm::Transfer::Kind::send : NcclComm::Transfer::Kind::receive,
                         static_cast<int>(transfer.peer), place(issued_, transfer), transfer.size_bytes});
  issue(transfers);
  ++issued_;
}

// Whether the group that was issued last is done, which `end` comes behind. Asks for errors as long as it is not.
bool CudaExchange::has_crossed(const Event& end) {
  if (!comm().ready()) return false;
  if (!std::exchange(on_stream_, true)) end.record(resources_->cross_stream);
  return end.reached();
}

void CudaExchange::cross() {
  if (issued_ == crossed_ || !has_crossed(stage(crossed_).crossed)) return;
  copy_out();
  ++crossed_;
}

void CudaExchange::copy_out() {
  for (const auto& transfer : plan_->step(member_, crossed_))
    if (!transfer.is_send && to_[transfer.peer] != nullptr)
      CKPT_CUDA(cuMemcpyDtoHAsync_v2, to_[transfer.peer] + transfer.first_byte, place(crossed_, transfer),
                transfer.size_bytes, resources_->copy_stream);
  stage(crossed_).landed.record(resources_->copy_stream);
}

void CudaExchange::land() {
  while (landed_ < crossed_ && stage(landed_).landed.reached()) ++landed_;
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
  else if (landed_ < allowed_ && deadline_.passed())
    throw Failure(CKPT_ERR_TIMEOUT, "a chunk on its way from GPU to GPU got no further for " +
                                        std::to_string(settings_.step_timeout_ms) + " ms");
}

// A context that has died may have written until then: nobody knows.
bool CudaExchange::becomes_still(std::initializer_list<CUstream> streams, Deadline deadline) const {
  try {
    std::vector<Event> ends;
    for (const CUstream stream : streams) ends.emplace_back().record(stream);
    while (!std::all_of(ends.begin(), ends.end(), [](const Event& end) { return end.reached(); })) {
      if (deadline.passed()) return false;
      std::this_thread::sleep_for(still_pause);
    }
    return true;
  } catch (const Failure&) {
    return false;
  }
}

// NCCL writes into sub-buffers alone.
bool CudaExchange::abandon(Deadline deadline) {
  plan_.reset();
  allowed_ = filled_ = issued_ = crossed_ = landed_ = 0;
  const bool is_still = becomes_still({resources_->fill_stream, resources_->copy_stream}, deadline);
  may_free_ = comm().abort(deadline) && becomes_still({resources_->cross_stream}, deadline) && is_still;
  return is_still;
}

}  // namespace ckpt::device
