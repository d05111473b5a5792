package berthv1

import (
	"context"

	api "berth/api/berth/v1"
	"berth/internal/cri/request"
)

// Login asks a registry whether it takes credentials.
func (s *service) Login(ctx context.Context, req *api.LoginRequest) (*api.LoginResponse, error) {
	c := request.New(req)
	if req.GetRegistry() == "" {
		c.Fail("registry", "empty")
	}
	if a := req.GetAuth(); a.GetUsername() == "" || a.GetPassword() == "" {
		c.Fail("auth", "lacks a user's name or a password")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	asked, err := s.archive.Login(ctx, req.GetRegistry(), auth(req.GetAuth()))
	if err != nil {
		return nil, err
	}
	return &api.LoginResponse{Asked: asked}, nil
}
