// A program without Python for `carma bench trace --tasks ways_tasks.toml`: managed memory, one kernel after another, no output but a count.
//
//     nvcc -O2 ways_native.cu -o ways_native && ./ways_native 2000
#include <cstdio>
#include <cstdlib>

__global__ void scale(float *values, size_t count, float by) {
    for (size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x; at < count; at += (size_t)gridDim.x * blockDim.x)
        values[at] = values[at] * by + 1.0f;
}

static void check(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 100;
    size_t count = (size_t)1 << 30;
    float *values;
    check(cudaMallocManaged(&values, count * sizeof(float)), "cudaMallocManaged");
    for (int step = 1; step <= steps; ++step) {
        scale<<<1024, 256>>>(values, count, 0.5f);
        check(cudaGetLastError(), "launch");
        if (step % 100 == 0) {
            check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
            printf("%d/%d\n", step, steps);
            fflush(stdout);
        }
    }
    check(cudaFree(values), "cudaFree");
}
