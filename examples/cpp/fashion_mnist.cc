// LeNet on Fashion-MNIST: fashion_mnist [FOLDER OF THE FILES [EPOCHS [WORKERS]]]
#include <orca/io/array_file.h>
#include <orca/nn/estimator.h>

#include <cstdio>

namespace F = torch::nn::functional;
using orca::nn::Dataset;

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d conv1 = register_module("conv1", torch::nn::Conv2d(1, 6, 5));
  torch::nn::Conv2d conv2 = register_module("conv2", torch::nn::Conv2d(6, 16, 5));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(16 * 4 * 4, 120));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(120, 84));
  torch::nn::Linear fc3 = register_module("fc3", torch::nn::Linear(84, 10));

  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2).flatten(1);
    return fc3(torch::relu(fc2(torch::relu(fc1(x)))));
  }
};
TORCH_MODULE(Net);

Dataset Read(const std::string& folder, const std::string& part) {
  const auto read = [&](const std::string& kind) {
    return orca::nn::ToTorch(orca::io::ReadIdx(folder + "/" + part + kind + "-ubyte"));
  };
  const torch::Tensor images = read("-images-idx3").to(torch::kFloat32).unsqueeze(1);
  return {images.div(127.5).sub(1.0), read("-labels-idx1").to(torch::kInt64)};
}

int main(int argc, char** argv) {
  orca::Init(argc, argv);  // In a worker it does not return.
  const std::string folder = argc > 1 ? argv[1] : "data/FashionMNIST/raw";
  const auto context = orca::Context::Start({});
  orca::nn::Estimator estimator(
      *context, {.model = [] { return orca::nn::Model(Net()); },
                 .optimizer = [](torch::nn::Module& net) -> orca::nn::OptimizerPointer {
                   return std::make_unique<torch::optim::SGD>(
                       net.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
                 },
                 .loss =
                     [](const torch::Tensor& output, const torch::Tensor& label) {
                       return orca::nn::Loss(F::cross_entropy(output, label));
                     },
                 .metrics = {"Accuracy"},
                 .workers = argc > 3 ? std::stoi(argv[3]) : 0});
  for (const auto& epoch : estimator.Fit(
           Read(folder, "train"), {.epochs = argc > 2 ? std::stoi(argv[2]) : 2, .batch_size = 64}))
    std::printf("epoch %d: loss %.7f\n", static_cast<int>(epoch.epoch), epoch.train_loss);
  const auto test = Read(folder, "t10k").In(*context);
  const auto scores = estimator.Evaluate(test);
  std::printf("test loss %.7f, accuracy %.4f\n", scores.loss, scores.at("Accuracy"));
  std::printf("%d predictions\n", static_cast<int>(estimator.Predict(test).size(0)));
  estimator.Save("fashion_mnist.pt");
}
