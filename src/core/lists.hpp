// contains() and add_once(), for short lists that serve as sets.
#pragma once

#include <algorithm>
#include <vector>

namespace ckpt::core {

template <class Container, class Value>
bool contains(const Container& container, const Value& value) {
  return std::find(container.begin(), container.end(), value) != container.end();
}

template <class Value>
void add_once(std::vector<Value>& list, const Value& value) {
  if (!contains(list, value)) list.push_back(value);
}

}  // namespace ckpt::core
