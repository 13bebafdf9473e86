// Optimizer trains three float32 parameters of a chaos_trainer with AdamW and known gradients, one element at a time,
// as torch does on a CPU without FMA. Its code is its own: it shares nothing with the engine's kernels. After each
// update it writes the digests of its state to a file, and after a restore it compares the state with them.
//
// The state of an iteration does not depend on how it is cut. So ranks of any number write to and read from one file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ckptengine/ckptengine.h"
#include "tensors.hpp"

namespace ckpt::chaos {

// Which part of the state a rank has.
enum class Cut : std::uint8_t {
  own,     // a state of its own
  shared,  // the state that all ranks have
  split    // its range of the job's state
};
Cut cut_named(const std::string& name);

struct Range {
  std::uint64_t begin = 0, end = 0;  // elements of a whole tensor
  std::uint64_t size() const { return end - begin; }
};
// The range of a tensor of `elements` elements that one of `world_size` ranks has if the tensor is split.
Range range_of(std::uint64_t elements, std::uint64_t rank, std::uint64_t world_size);

// The digests of all blocks in all iterations, in a file that outlives the process. Several processes may use it.
class DigestLog {
 public:
  DigestLog(const std::string& path, std::uint64_t blocks);
  // 0: nobody has written it.
  std::uint64_t read(std::int64_t iteration, std::uint64_t block) const;
  void write(std::int64_t iteration, std::uint64_t block, std::uint64_t digest) const;

 private:
  std::int64_t place(std::int64_t iteration, std::uint64_t block) const;

  int file_;
  std::uint64_t blocks_;
};

class Optimizer {
 public:
  // `folder` has the digests. `bytes`: of the parameters and moments of the whole state.
  Optimizer(const std::string& folder, Cut cut, std::uint64_t rank, std::uint64_t world_size, std::uint64_t bytes);

  // The model with its first state: this rank's ranges of the parameters and their moments, and small tensors beside
  // them that no optimizer updates.
  std::vector<Tensor> make_model() const;

  // Call it before the update that leads to `iteration`.
  void give_gradients(ckpt_engine* engine, std::int64_t iteration);
  // Updates the tensors, and writes their digests. Returns false if another process has had another state then.
  bool update(std::vector<Tensor>& model, std::int64_t iteration);
  // How many blocks are not as they were at that iteration, and the name of the first of their tensors.
  std::size_t count_wrong(const std::vector<Tensor>& model, std::int64_t iteration, std::string& first) const;

  // The whole size of the parameter that a tensor belongs to. 0: it belongs to none.
  std::uint64_t whole_elements(const std::string& tensor) const;

 private:
  struct Parameter {
    std::string name;
    std::uint64_t elements = 0;     // of the whole
    Range here;                     // what this rank has of it
    std::uint64_t first_block = 0;  // of the whole
    double weight_decay = 0;
  };
  float gradient(std::size_t number, std::int64_t iteration, std::uint64_t element) const;
  void step(std::vector<Tensor>& model, std::size_t number, std::int64_t iteration) const;
  std::uint64_t digest(const std::vector<Tensor>& model, std::size_t number, const Range& block) const;
  template <class Visit>
  void for_each_block(const Visit& visit) const;

  Cut cut_;
  std::uint64_t rank_, world_size_, seed_;
  std::vector<Parameter> parameters_;
  DigestLog log_;
  std::vector<float> gradients_;
  std::vector<std::uint16_t> short_gradients_;  // in bfloat16
};

}  // namespace ckpt::chaos
