// ground_truth: the classes of images that lie in one flat folder, as ILSVRC's validation set does.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// In: image names (sorted), the class names, a file of one line an image, and optionally a file of class names by number.
/// A line of `labels` is "CLASS" (line i belongs to image i) or "IMAGE CLASS" (any order, every image once).
/// CLASS is a class name, or a number: from 1, of a line of `label_names` (ILSVRC's IDs, whose order is not the sorted one),
/// or without `label_names` from 0, of the sorted class names.  Error names the file and the line.
std::vector<std::int32_t> read_ground_truth(const std::vector<std::string>& images, const std::vector<std::string>& classes,
                                            const std::string& labels, const std::string& label_names);
/// The class names that such files mention, sorted: for a flat folder on its own.
std::vector<std::string> classes_in(const std::vector<std::string>& images, const std::string& labels, const std::string& label_names);

}  // namespace lockstep
